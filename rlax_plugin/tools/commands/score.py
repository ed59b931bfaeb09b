"""``rlax score``: scores the completions of a file with a config's rewards."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from pydantic import AliasChoices, Field
from rich.console import Console
from rich.table import Table

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import harmless, one_line, storable
from rlax_plugin.base.types import Episode, Prompt, Sampled, Score, Trajectory, Turn, Unscored
from rlax_plugin.build import Registry, registry_for
from rlax_plugin.config import (
    SINGLE_TURN,
    EnvironmentChoice,
    NonNegativeInt,
    RlaxSection,
    Section,
    distinct_names,
    last_of,
)
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.config.validation import validate
from rlax_plugin.data.prompts.table import with_ids
from rlax_plugin.ports.protocols import BuildContext, PromptSource
from rlax_plugin.reward.pool import RewardPool

log = logging.getLogger("rlax.score")

_LOG = Path("logs", "rewards.log")  # of a reward pool, below its directory
_LONGEST_LOG = 4000  # characters, of its end
_SHOWN = 40  # characters of a completion
_LONGEST = 64 << 20  # bytes of a line


class Line(Section):
    """One completion; its prompt is in the same line or in the config's prompt source.

    Attributes:
      number: number of the line, from 1.
      place: the file and the line, for messages.
    """

    number: int
    place: str
    completion: str
    prompt: str = ""
    reference: str | None = Field(
        default=None, validation_alias=AliasChoices("reference", "answer")
    )
    metadata: dict[str, Any] = Field(default={})
    id: str = ""
    tokens: tuple[NonNegativeInt, ...] | None = None
    finish: Literal["stop", "length"] = "stop"

    @property
    def names_a_prompt(self) -> bool:
        """True if the prompt is one of the config's prompt source."""
        return bool(self.id) and self.reference is None and not self.prompt and not self.metadata

    @property
    def identity(self) -> str:
        """A key that is equal for lines with the same prompt."""
        return json.dumps([self.id, self.prompt, self.reference, self.metadata], sort_keys=True)

    def as_prompt(self) -> Prompt:
        """Returns the prompt that the line describes, without tokens."""
        name, tokens = self.id or f"line {self.number}", np.zeros(0, np.int32)
        return Prompt(name, tokens, self.prompt, self.reference or "", self.metadata)


def read_lines(file: str) -> Iterator[Line]:
    """Yields the completions of a file; blank lines are left out.

    Args:
      file: path of the file; ``-``: standard input.

    Raises:
      ConfigError: the file cannot be read or is empty, or a line is wrong; names the line.
    """
    empty = True
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as stream:
            lines = iter(lambda: stream.readline(_LONGEST + 1), b"")
            for number, data in enumerate(lines, 1):
                if len(data) > _LONGEST:
                    reason = f"is longer than {_LONGEST >> 20} MiB"
                    raise ConfigError(f"{file}:{number}", "...", reason)
                if data.strip():
                    empty = False
                    yield _line(data, number, f"{file}:{number}")
    except OSError as error:
        raise ConfigError("FILE", file, f"cannot be read: {error.strerror}") from error
    if empty:
        raise ConfigError("FILE", file, "has no completions")


def _line(data: bytes, number: int, place: str) -> Line:
    try:
        text = data.decode("utf-8-sig" if number == 1 else "utf-8")
        values = json.loads(text, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise ConfigError(place, None, f"is not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(place, text.strip()[:80], f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(place, values, 'must be an object such as {"completion": "...", ...}')
    values = _storable(values)
    for key in ("number", "place"):
        if key in values:
            raise ConfigError(f"{place}: {key}", values[key], "is not a key of a completion")
    return validate(Line, values | {"number": number, "place": place}, place)


def _storable(value: Any) -> Any:
    """Returns a JSON value without lone surrogates, like texts of prompt sources and engines."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, dict):
        return {storable(key): _storable(one) for key, one in value.items()}
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


@dataclass(slots=True)
class ScoredFile:
    """The scores of the completions of a file.

    Attributes:
      lines: the lines of the file.
      scores: one for each line.
      log: the end of the output that rewards printed.
      log_file: the file with all of it, which is kept if a message cites it or a line has no
        reward; else "".
    """

    section: RlaxSection
    lines: Sequence[Line]
    scores: Sequence[Score | Unscored] = ()
    log: str = ""
    log_file: str = ""

    @property
    def failed(self) -> bool:
        return any(isinstance(score, Unscored) for score in self.scores)

    @property
    def totals(self) -> np.ndarray:
        """Rewards of the lines that have a score, float64 [lines]."""
        return np.array([s.total for s in self.scores if isinstance(s, Score)])

    @property
    def parts(self) -> np.ndarray:
        """Values of each reward without weights, float64 [lines that have a score, rewards]."""
        found = [s.parts for s in self.scores if isinstance(s, Score)]
        return np.array(found).reshape(len(found), len(self.section.rewards))


def score_file(resolved: ResolvedConfig, file: str) -> ScoredFile:
    """Scores the completions of a file.

    Lines with the same prompt are scored together, as the samples of a group are.

    Args:
      file: JSON lines, see ``read_lines``; ``-``: standard input.

    Raises:
      ConfigError: the config, or a line of the file, is wrong.
      RlaxError: a reward process does not start; the end of its output is printed.
    """
    resolved.section.check_one_environment("rlax score")
    section = resolved.section.model_copy(
        update={"environment": EnvironmentChoice(name=SINGLE_TURN)}
    )
    registry = registry_for(section)
    registry.validate(section)
    if not section.rewards:
        raise ConfigError("rlax.rewards", [], "must name at least one reward to score with")
    context = BuildContext.outside_run(section, resolved)
    for index, choice in enumerate(section.rewards):
        registry.check_part("reward", choice, f"rlax.rewards.{index}", context)
    source = _Source(registry, section, context)
    scored = ScoredFile(section, list(read_lines(file)))
    prompts = _prompts(scored.lines, source)
    directory = Path(tempfile.mkdtemp(prefix="rlax-score-"))
    notes: list[str] = []

    def told(line: str) -> None:
        notes.append(line)
        log.warning(line)

    try:
        pool = RewardPool(section, directory, note=told, functions=resolved.functions)
        scored.scores = asyncio.run(_scores(pool, scored.lines, prompts, source))
    except BaseException as error:
        print(_log(directory), end="", file=sys.stderr)
        notes.append(str(error))
        raise
    finally:
        scored.log = _log(directory)
        if (scored.failed and scored.log) or any(str(directory) in note for note in notes):
            scored.log_file = str(directory / _LOG)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return scored


def _log(directory: Path) -> str:
    path = directory / _LOG
    return harmless(path.read_text(errors="replace")[-_LONGEST_LOG:]) if path.exists() else ""


@dataclass(slots=True)
class _Source:
    """The config's prompt source, which is built only when it is needed."""

    registry: Registry
    section: RlaxSection
    context: BuildContext
    _built: PromptSource | None = field(default=None, init=False)

    @property
    def source(self) -> PromptSource:
        built = self._built
        if built is None:
            key, choice = "rlax.prompt_source", self.section.prompt_source
            built = self._built = self.registry.part("prompt_source", choice, key, self.context)
        return built

    def with_ids(self, wanted: set[str]) -> dict[str, Prompt]:
        """Returns the prompts with these ids, from all splits."""
        found: dict[str, Prompt] = {}
        for split in self.source.splits:
            if not (left := wanted - found.keys()):
                break
            try:
                found |= with_ids(self.source.prompts(split), left)
            except ConfigError:
                if split == "train":  # others need not be there
                    raise
        return found

    def tokens(self, line: Line) -> np.ndarray:
        """Returns the tokens of a completion, int32 [length]."""
        if line.tokens is not None:
            return np.array(line.tokens, np.int32)
        try:
            return np.array(self.source.encode(line.completion), np.int32)
        except (LookupError, TypeError, ValueError) as error:
            reason = f"cannot be encoded by the prompt source: {one_line(str(error))}"
            shown = one_line(line.completion, _SHOWN)
            raise ConfigError(f"{line.place}: completion", shown, reason) from error


def _prompts(lines: Iterable[Line], source: _Source) -> list[Prompt]:
    """Returns the prompt of each line; equal prompts are the same object."""
    wanted = {line.id for line in lines if line.names_a_prompt}
    known = source.with_ids(wanted) if wanted else {}
    made: dict[str, Prompt] = {}
    found = []
    for line in lines:
        if not line.names_a_prompt:
            made.setdefault(line.identity, line.as_prompt())
            found.append(made[line.identity])
        elif line.id in known:
            found.append(known[line.id])
        else:
            name = source.section.prompt_source.name
            reason = f"is not a prompt of rlax.prompt_source ({name}): give prompt and reference"
            raise ConfigError(f"{line.place}: id", line.id, reason)
    return found


async def _scores(
    pool: RewardPool, lines: Sequence[Line], prompts: Sequence[Prompt], source: _Source
) -> list[Score | Unscored]:
    groups: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        groups.setdefault(id(prompt), []).append(number)
    try:
        await pool.start()
        given = pool.needs.tokens
        episodes = [
            _episode(line, prompt, source.tokens(line) if given else np.zeros(0, np.int32))
            for line, prompt in zip(lines, prompts, strict=True)
        ]
        found = await asyncio.gather(
            *(
                pool.score(prompts[numbers[0]], [episodes[number] for number in numbers])
                for numbers in groups.values()
            )
        )
    finally:
        await pool.close()
    of_line = {
        number: score
        for numbers, scores in zip(groups.values(), found, strict=True)
        for number, score in zip(numbers, scores, strict=True)
    }
    return [of_line[number] for number in range(len(lines))]


def _episode(line: Line, prompt: Prompt, tokens: np.ndarray) -> Episode:
    nats, versions = np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32)
    turn = Turn(prompt.tokens, Sampled(0, tokens, nats, versions, line.finish))
    # What rewards read of a model is harmless as well.
    return Episode(line.number - 1, (Trajectory((turn,)),), harmless(line.completion))


def document(scored: ScoredFile) -> dict[str, Any]:
    """Returns the scores as a document for JSON."""
    rewards = scored.section.rewards
    names = distinct_names([one.metric_name for one in rewards])
    return {
        "rewards": [
            {"name": name, "weight": last_of(one.weight)}
            for name, one in zip(names, rewards, strict=True)
        ],
        "samples": list(_samples(scored)),
        "scored": len(scored.totals),
        "errors": len(scored.lines) - len(scored.totals),
        "log": scored.log_file or None,
        **_means(scored),
    }


def _samples(scored: ScoredFile) -> Iterator[Mapping[str, Any]]:
    for line, score in zip(scored.lines, scored.scores, strict=True):
        row: dict[str, Any] = {"line": line.number, "id": line.id}
        if isinstance(score, Unscored):
            yield row | {"error": score.reason, "ending": score.ending}
        else:
            said = {"reward": score.total, "parts": score.parts}
            said |= {"ending": score.ending} if score.ending else {}
            yield row | said | ({"metrics": dict(score.metrics)} if score.metrics else {})


def _means(scored: ScoredFile) -> dict[str, Any]:
    if not len(scored.totals):
        return {}
    threshold = scored.section.curation.pass_threshold
    return {
        "mean": float(scored.totals.mean()),
        "mean_parts": scored.parts.mean(axis=0).tolist(),
        "passed": int((scored.totals >= threshold).sum()),
        "pass_threshold": threshold,
    }


def show(console: Console, scored: ScoredFile) -> None:
    """Prints a table with a row for each line, and means."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("line", justify="right")
    for choice in scored.section.rewards:
        table.add_column(str(choice), justify="right")
    table.add_column("reward", justify="right")
    table.add_column("completion", overflow="fold")
    for line, score in zip(scored.lines, scored.scores, strict=True):
        text = one_line(line.completion, _SHOWN)
        if isinstance(score, Unscored):
            blank = [""] * len(scored.section.rewards)
            table.add_row(str(line.number), *blank, "error", f"{text}\n{score.reason}")
        else:
            numbers = [f"{part:g}" for part in (*score.parts, score.total)]
            table.add_row(str(line.number), *numbers, text)
    if means := _means(scored):
        numbers = [f"{mean:.4g}" for mean in (*means["mean_parts"], means["mean"])]
        passed, of = means["passed"], len(scored.totals)
        share = f"{passed} of {of} pass: their reward is at least {means['pass_threshold']:g}"
        table.add_section()
        table.add_row("mean", *numbers, share)
    console.print(table)
    if failed := len(scored.lines) - len(scored.totals):
        console.print(f"{failed} of {len(scored.lines)} lines have no reward.")
    if scored.failed and scored.log:
        console.print(f"\nThe end of what the rewards printed, which is in {scored.log_file}:")
        console.print(scored.log)
