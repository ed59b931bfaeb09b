"""``rlax prompts``: shows the prompts of a config, and rows that were left out with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.text.harmless import harmless, one_line
from rlax_plugin.base.types import Prompt
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.data.prompts.checking import read_prompts
from rlax_plugin.data.prompts.table import PromptTable, indices_of
from rlax_plugin.ports.protocols import BuildContext, PromptSource

_KEY = "rlax.prompt_source"
_LONGEST = 4000  # characters of a prompt that are shown; --json has all
_METADATA = 600


@dataclass(frozen=True, slots=True)
class Wanted:
    """The prompts to show.

    Attributes:
      split: the only split to show; empty: all splits.
      count: number of prompts of each split to show.
      prompt_id: id of the only prompt to show; empty: the first ones are shown.
    """

    split: str = ""
    count: int = 3
    prompt_id: str = ""


def document(
    config: ResolvedConfig, wanted: Wanted, progress: Callable[[str, int], None]
) -> dict[str, Any]:
    """Returns a document about the prompts of a config: sizes, left-out rows and examples.

    Args:
      progress: see ``BuildContext``.

    Raises:
      RlaxError: the prompts cannot be read, or there is no such split or prompt.
    """
    section = config.section
    section.check_one_environment("rlax prompts")
    context = replace(BuildContext.outside_run(section, config), progress=progress)
    name = section.prompt_source.name
    source: PromptSource = registry_for(section).part(
        "prompt_source", section.prompt_source, _KEY, context
    )
    known = source.splits
    if wanted.split and wanted.split not in known:
        reason = f"no such split; {alternatives(wanted.split, known)}"
        raise ConfigError("--split", wanted.split, reason)
    splits: dict[str, Sequence[Prompt]] = {}
    told: dict[str, Any] = {}
    for split in (wanted.split,) if wanted.split else known:
        try:
            splits[split] = read_prompts(source, split, _KEY, name)
        except ConfigError as error:
            if split in ("train", wanted.split):
                raise
            told[split] = {"prompts": 0, "error": str(error)}
            continue
        told[split] = _of_split(splits[split], split, section.rollouts.max_prompt_tokens)
    shown = [
        _of_prompt(source, split, prompts, index)
        for split, prompts in splits.items()
        for index in _chosen(prompts, wanted)
    ]
    if wanted.prompt_id and not shown:
        reason = f"is the id of no prompt of {', '.join(splits)}"
        raise ConfigError("--id", wanted.prompt_id, reason)
    return {"prompt_source": name, "splits": told, "prompts": shown}


def _of_split(prompts: Sequence[Prompt], split: str, limit: int) -> dict[str, Any]:
    table = prompts if isinstance(prompts, PromptTable) else None
    lengths = table.lengths if table else np.array([len(one.tokens) for one in prompts], int)
    found: dict[str, Any] = {"prompts": len(prompts)}
    if len(prompts):
        found["tokens"] = {
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "longest": int(lengths.max()),
            "max_prompt_tokens": limit,
        }
    if table and table.domains:
        counts = np.bincount(table.domains.of_n, minlength=len(table.domains.names))
        found["domains"] = [
            {"name": name, "prompts": int(count), "weight": float(weight)}
            for name, count, weight in zip(
                table.domains.names, counts, table.domains.weights, strict=True
            )
        ]
    found["left_out"] = [
        {
            "reason": reason,
            "count": one.count,
            "examples": [{"place": place, "what": what} for place, what in one.examples],
        }
        for reason, one in (table.skipped if table else {}).items()
    ]
    return found


def _chosen(prompts: Sequence[Prompt], wanted: Wanted) -> Sequence[int]:
    if wanted.prompt_id:
        return list(indices_of(prompts, {wanted.prompt_id}).values())
    if isinstance(prompts, PromptTable):
        return prompts.first(wanted.count)
    return range(min(wanted.count, len(prompts)))


def _of_prompt(
    source: PromptSource, split: str, prompts: Sequence[Prompt], index: int
) -> dict[str, Any]:
    prompt, tokenizer = prompts[index], source.tokenizer
    rendered = tokenizer.decode(prompt.tokens, special=True) if tokenizer else None
    place = prompts.place_of(index) if isinstance(prompts, PromptTable) else ""
    return {
        "split": split,
        "number": index + 1,
        "id": prompt.id,
        "place": place.removesuffix(","),
        "tokens": len(prompt.tokens),
        "rendered": source.decode(prompt.tokens) if rendered is None else rendered,
        "text": prompt.text,
        "reference": prompt.reference,
        "metadata": dict(prompt.metadata),
    }


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Prints a document; ``console`` must be a ``HarmlessConsole``."""
    for split, one in found["splits"].items():
        title = f"{split}: {one['prompts']:,} prompts of {found['prompt_source']}"
        console.print(Text(title, style="bold"))
        if "error" in one:
            console.print(Text(f"  {one['error']}"))
        if "tokens" in one:
            _show_tokens(console, one["tokens"])
        if "domains" in one:
            _show_domains(console, one)
        _show_left_out(console, one.get("left_out", ()))
        console.print()
    for one in found["prompts"]:
        _show_prompt(console, one, found["splits"][one["split"]]["prompts"])


def _show_tokens(console: Console, tokens: Mapping[str, Any]) -> None:
    console.print(
        f"  tokens: {tokens['shortest']:,} to {tokens['longest']:,}, median "
        f"{tokens['median']:,g}; rlax.rollouts.max_prompt_tokens is "
        f"{tokens['max_prompt_tokens']:,}"
    )


def _show_domains(console: Console, one: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading, justify in (("  domain", "left"), ("prompts", "right"), ("weight", "right")):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for domain in one["domains"]:
        name = one_line(domain["name"], 60) or "(none)"
        table.add_row(f"  {name}", f"{domain['prompts']:,}", f"{domain['weight']:.3f}")
    console.print(table)


def _show_left_out(console: Console, left_out: Sequence[Mapping[str, Any]]) -> None:
    for one in left_out:
        console.print(f"  left out, {one['reason']}: {one['count']:,}")
        for example in one["examples"]:
            console.print(Text(f"    {one_line(example['place'])} {one_line(example['what'])}"))


def _show_prompt(console: Console, one: Mapping[str, Any], prompts: int) -> None:
    where = f", {one_line(one['place'])}" if one["place"] else ""
    title = f"{one['split']}, prompt {one['number']:,} of {prompts:,}{where}"
    console.print(Text(title, style="bold"))
    console.print(Text(f"  id {one['id']}, {one['tokens']:,} tokens"))
    text = harmless(one["rendered"])
    for line in text[:_LONGEST].splitlines() or [""]:
        console.print(Text(f"  | {line}"))
    if len(text) > _LONGEST:
        console.print(Text(f"  ... ({len(text) - _LONGEST:,} more characters; --json has all)"))
    console.print(Text(f"  reference: {one_line(one['reference'], _METADATA)}"))
    for name, value in one["metadata"].items():
        console.print(Text(f"  metadata {one_line(name, 60)}: {one_line(repr(value), _METADATA)}"))
    console.print()
