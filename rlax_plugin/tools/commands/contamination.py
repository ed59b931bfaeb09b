"""``rlax prompts --contamination``: finds training prompts that are also in evaluation sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.places import check_new_file
from rlax_plugin.base.text.harmless import harmless, one_line
from rlax_plugin.base.types import Prompt
from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, Deadlines
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.data.curation.contaminated import write_contaminated
from rlax_plugin.data.curation.contamination import KINDS, SAME_ID, WORDS, Match, Sets
from rlax_plugin.data.prompts.checking import checked_prompts, read_prompts
from rlax_plugin.data.prompts.ids import among, ids_of
from rlax_plugin.data.prompts.of_run import asked_sets
from rlax_plugin.data.prompts.table import PromptTable
from rlax_plugin.ports.protocols import BuildContext, PromptSource

_AT_ONCE = 4096  # texts
_EXAMPLES = 3  # of each set and kind
_LONGEST = 300  # characters of a text that is shown


def contamination(
    config: ResolvedConfig, words: int | None, out: str | None, progress: Callable[[str, int], None]
) -> dict[str, Any]:
    """Looks for contaminated prompts, and writes a file of them if ``out`` is given.

    Args:
      words: number of consecutive words that count as an overlap, see ``Sets``; None: its default.
      out: see ``write_contaminated``; None: no file.
      progress: see ``BuildContext``.

    Raises:
      RlaxError: prompts cannot be read, there is no evaluation, or the file exists or cannot be
        written.
    """
    section = config.section
    section.check_one_environment("rlax prompts --contamination")
    if out is not None:
        check_new_file("--out", out, Deadlines().rpc_s, ".parquet")
    if not section.evaluation.problems:
        reason = "turns evaluation off, so that there is nothing to compare with"
        raise ConfigError("rlax.evaluation.problems", 0, reason)
    context = replace(BuildContext.outside_run(section, config), progress=progress)
    registry, key = registry_for(section), "rlax.prompt_source"

    def part(kind: str, choice: Choice, place: str) -> Any:
        return registry.part(kind, choice, place, context)

    source: PromptSource = part("prompt_source", section.prompt_source, key)
    name = section.prompt_source.name
    train = checked_prompts(read_prompts(source, "train", key, name), "train", key, name)
    sets = Sets(words or WORDS)
    asked = {one.name: one.prompts for one in asked_sets(section, source, part)}
    for name, prompts in asked.items():
        sets.add(name, ((prompt.id, prompt.text) for prompt in prompts))
    matches = found(train, sets, progress)
    if out is not None:
        rows = np.array([match.prompt for match in matches], np.int64)
        write_contaminated(out, ids_of(train, rows).to_pylist(), matches, sets)
    return _document(train, asked, sets, matches)


def found(train: Sequence[Prompt], sets: Sets, progress: Callable[[str, int], None]) -> list[Match]:
    """Returns every training prompt that is in a set, once for each set."""
    by_id = _same_ids(train, sets)
    surest = {(one.prompt, sets.problems[one.problem].held_out) for one in by_id}
    done, all_matches = 0, list(by_id)
    for texts in _texts(train):
        for match in sets.look_up(done, texts):
            if (match.prompt, sets.problems[match.problem].held_out) not in surest:
                all_matches.append(match)
        done += len(texts)
        progress("comparing training prompts", done)
    return sorted(all_matches, key=lambda one: (one.prompt, sets.problems[one.problem].held_out))


def _same_ids(train: Sequence[Prompt], sets: Sets) -> list[Match]:
    import pyarrow as pa

    ids = ids_of(train)
    rows = np.flatnonzero(among(ids, pa.array(sets.ids, pa.string())))
    matches = []
    for row in rows.tolist():
        held_out: set[int] = set()
        for problem in sets.with_id(ids[row].as_py()):
            if (number := sets.problems[problem].held_out) not in held_out:
                held_out.add(number)
                matches.append(Match(row, problem, SAME_ID))
    return matches


def _texts(prompts: Sequence[Prompt]) -> Iterator[list[str]]:
    if isinstance(prompts, PromptTable):
        yield from prompts.texts()
        return
    for start in range(0, len(prompts), _AT_ONCE):
        yield [prompt.text for prompt in prompts[start : start + _AT_ONCE]]


def _document(
    train: Sequence[Prompt],
    asked: Mapping[str, Sequence[Prompt]],
    sets: Sets,
    matches: Sequence[Match],
) -> dict[str, Any]:
    every = [prompt for prompts in asked.values() for prompt in prompts]
    told = []
    for number, (name, prompts) in enumerate(asked.items()):
        own = [one for one in matches if sets.problems[one.problem].held_out == number]
        counts = Counter(one.kind for one in own)
        examples = []
        for kind in range(len(KINDS)):
            for one in [one for one in own if one.kind == kind][:_EXAMPLES]:
                problem, prompt = every[one.problem], train[one.prompt]
                examples.append(
                    {
                        "kind": KINDS[kind],
                        "id": prompt.id,
                        "text": prompt.text,
                        "evaluation_id": problem.id,
                        "evaluation_text": problem.text,
                    }
                )
        told.append(
            {
                "set": name,
                "problems": len(prompts),
                "touched": len({one.problem for one in own}),
                "kinds": {KINDS[kind]: counts[kind] for kind in range(len(KINDS))},
                "examples": examples,
            }
        )
    return {
        "training_prompts": len(train),
        "contaminated": len({one.prompt for one in matches}),
        "templates_left_out": sets.common,
        "sets": told,
    }


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Prints a document; ``console`` must be a ``HarmlessConsole``."""
    table = Table()
    for index, column in enumerate(("evaluation set", "problems", "of them in training", *KINDS)):
        table.add_column(column, justify="right" if index else "left")
    for one in document["sets"]:
        numbers = (one["problems"], one["touched"], *one["kinds"].values())
        table.add_row(one_line(one["set"], 40), *(f"{number:,}" for number in numbers))
    console.print(table)
    console.print(
        f"{document['contaminated']:,} of {document['training_prompts']:,} training prompts are in "
        "an evaluation set"
    )
    if document["templates_left_out"]:
        console.print(
            f"{document['templates_left_out']:,} stretches of words were not compared: they are "
            "mostly of a template that many problems of their set have"
        )
    for one in document["sets"]:
        for example in one["examples"]:
            console.print()
            title = f"{one['set']}, {example['kind']}: {example['id']}, {example['evaluation_id']}"
            console.print(Text(one_line(title), style="bold"))
            for name in ("text", "evaluation_text"):
                console.print(Text(f"  | {one_line(harmless(example[name]), _LONGEST)}"))
