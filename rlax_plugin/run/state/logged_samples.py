"""Logged samples: groups of another run, or of a table, that train in place of rollouts.

They are checked here, once. Each group of the log stands behind a prompt of its own, whose id names
the group's samples by a checksum: so a resume finds out if the log has changed. Their tokens have
``NO_VERSION`` and no workers, because no weights and no worker of this run have generated them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError, DeadlineError
from rlax_plugin.base.files.run_files import RunFiles, file_at
from rlax_plugin.base.files.seals import checksum
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.defects import defect, outside
from rlax_plugin.base.tokens.stopping import end_of
from rlax_plugin.base.types import (
    EMPTY,
    NO_VERSION,
    Prompt,
    Sampled,
    SamplingParams,
    Score,
    ScoredGroup,
)
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.checking import checked_prompts
from rlax_plugin.data.prompts.record import LOGGED
from rlax_plugin.ports.curation import PassRates
from rlax_plugin.ports.protocols import PromptSource
from rlax_plugin.rollout.fleet.requests import sampling_params, single_turn
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import NotKeptError
from rlax_plugin.training.objective.advantages import compares_groups
from rlax_plugin.training.objective.combinations import reads_logprobs
from rlax_plugin.training.objective.slots import ObjectiveSlots

_TABLE = ".parquet"
_AT_ONCE = 64  # rows of a table


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample as the log has it.

    Attributes:
      where: its place in the log, for messages.
      logprobs: None: the log has none.
      text: the text that the log has of it; None: none.
      demonstration: True if no policy sampled it; it then has no log-probs.
    """

    where: str
    tokens: np.ndarray
    logprobs: np.ndarray | None
    score: Score
    seed: int = 0
    text: str | None = None
    demonstration: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    prompt: Prompt
    samples: Sequence[_Sample]


@dataclass(frozen=True, slots=True)
class LoggedSamples:
    """The groups of a log, checked.

    Attributes:
      groups: in the order of the log, with the samples that ``rlax.logged_samples`` keeps.
      prompts: the prompt of each group, with a harmless text.
      note: their numbers, in a sentence.
    """

    path: str
    groups: Sequence[ScoredGroup]
    prompts: Sequence[Prompt]
    note: str

    def group(self, index: int, group_id: int, attempt: int) -> ScoredGroup:
        """Returns the group of a prompt under its number in this run."""
        group, prompt = self.groups[index], self.prompts[index]
        return dataclasses.replace(group, id=group_id, attempt=attempt, prompt=prompt)

    def check_vocabulary(self, index: int, vocabulary: int) -> None:
        """Checks the tokens of a group, now that the model's vocabulary size is known.

        Raises:
          ConfigError: a token id is beyond it.
        """
        group = self.groups[index]
        for tokens in (group.prompt.tokens, *(s.tokens for s in group.sampled)):
            if why := outside(tokens, vocabulary):
                raise ConfigError(LOGGED, self.path, f"group {group.prompt.id} has {why}")


class LogOrder:
    """The sampler of logged samples: one group after the other, again and again."""

    def __init__(self) -> None:
        self._next = 0

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        chosen = [(self._next + place) % len(prompts) for place in range(count)]
        self._next = (self._next + count) % len(prompts)
        return chosen

    def state(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


def read_logged(
    section: RlaxSection, source: PromptSource, slots: ObjectiveSlots, maxtext: Mapping[str, Any]
) -> LoggedSamples:
    """Reads and checks ``rlax.logged_samples``.

    Args:
      source: decodes tokens, and encodes the prompts of a table that has texts.
      slots: of the objective, which may need the log-probs of the samples.
      maxtext: MaxText's keys; without ``vocab_size``, token ids are compared with the model's
        vocabulary when their group trains.

    Raises:
      ConfigError: a row or a sample is unusable, or the log lacks what the objective needs.
      DeadlineError: it takes longer than ``rlax.deadlines.prompts_s``.
      RlaxError: the log is damaged, or cannot be read.
    """
    # On a daemon: a disk or a network that hangs cannot keep the process alive.
    read = functools.partial(_read, section, source, slots, maxtext)
    reading, most_s = on_daemon(read, "reading logged samples"), section.deadlines.prompts_s
    if not wait([reading], most_s).done:
        raise DeadlineError("reading logged samples", most_s, "rlax.deadlines.prompts_s")
    return reading.result()


def _read(
    section: RlaxSection, source: PromptSource, slots: ObjectiveSlots, maxtext: Mapping[str, Any]
) -> LoggedSamples:
    path, sampling = section.logged_samples.path, sampling_params(section, source)
    reads_behaviour, vocabulary = reads_logprobs(slots), int(maxtext.get("vocab_size") or 0)
    dropped = ""
    if path.endswith(_TABLE):
        logged = _of_table(path, source)
    else:
        logged, dropped = _of_run(path, section.rollouts.temperature if reads_behaviour else None)
    groups: list[ScoredGroup] = []
    samples = kept = shown = 0
    for number, one in enumerate(logged):
        of_group = [s for s in one.samples if not (reads_behaviour and s.demonstration)]
        shown += len(one.samples) - len(of_group)
        for sample in of_group:
            _check(section, sampling, source, one.prompt, sample, vocabulary)
            if reads_behaviour and sample.logprobs is None:
                lacks = "no column logprobs" if path.endswith(_TABLE) else "samples without them"
                reason = (
                    f"has {lacks}, but the objective reads log-probs "
                    f"({section.objective.preset}): use behaviour_cloning or awr"
                )
                raise ConfigError(LOGGED, path, reason)
        some = _kept(section, of_group)
        samples, kept = samples + len(one.samples), kept + len(some)
        if some:
            groups.append(_scored(path, number, one.prompt, some, sampling, source))
        if len(some) > (size := section.rollouts.group_size):
            reason = f"must be at least {len(some)}, the samples of a group ({some[0].where})"
            raise ConfigError("rlax.rollouts.group_size", size, reason)
    if shown:
        dropped += f"; {shown} demonstrations, of which no policy gave the log-probs, are left out"
    if not groups:
        raise ConfigError(LOGGED, path, f"has no sample to train on, of {samples}{dropped}")
    _check_comparison(section, slots, groups)
    prompts = checked_prompts([group.prompt for group in groups], "train", LOGGED, path)
    note = f"training on {kept:,} of {samples:,} logged samples in {len(groups):,} groups{dropped}"
    if (updates := maxtext.get("steps")) and not section.batches.tokens:
        steps = updates // section.objective.updates_per_step
        note += f"; {steps * section.rollouts.groups_per_step / len(groups):.3g} epochs"
    return LoggedSamples(path, groups, prompts, note)


def _kept(section: RlaxSection, samples: Sequence[_Sample]) -> Sequence[_Sample]:
    least = section.logged_samples.min_reward
    some = [s for s in samples if least is None or s.score.total >= least]
    if section.logged_samples.keep == "best":
        return some and [max(some, key=lambda sample: sample.score.total)]
    return some


def _check_comparison(
    section: RlaxSection, slots: ObjectiveSlots, groups: Sequence[ScoredGroup]
) -> None:
    """Raises ConfigError if the objective compares samples of a group, and none of them differ."""
    if section.signals or slots.algorithm.grad_2.name != "none":
        return
    equal = all(np.ptp(group.rewards) == 0 for group in groups)
    if equal and compares_groups(slots.recorded_advantages):
        raise ConfigError(
            LOGGED,
            section.logged_samples.path,
            f"has no group whose samples differ in their rewards, which {section.objective.preset} "
            "compares: every sample would have the same advantage. Name groups in a column group "
            "and keep all their samples, or use behaviour_cloning",
        )


def _check(
    section: RlaxSection,
    sampling: SamplingParams,
    source: PromptSource,
    prompt: Prompt,
    sample: _Sample,
    vocabulary: int,
) -> None:
    """Raises ConfigError if a sample could not have been generated for this config's model."""
    path, rollouts = section.logged_samples.path, section.rollouts
    if not math.isfinite(sample.score.total):
        raise _wrong(path, sample.where, "reward", f"is {sample.score.total}, must be finite")
    for name, tokens, key in (
        ("prompt_tokens", prompt.tokens, "max_prompt_tokens"),
        ("tokens", sample.tokens, "max_new_tokens"),
    ):
        if not tokens.size:
            raise _wrong(path, sample.where, name, "is empty")
        if tokens.size > (most := getattr(rollouts, key)):
            reason = f"must be at least {tokens.size}, the {name} of {sample.where} of {path}"
            raise ConfigError(f"rlax.rollouts.{key}", most, reason)
        if why := outside(tokens, vocabulary):
            raise _wrong(path, sample.where, name, f"has {why}")
    if sample.logprobs is not None and sample.logprobs.shape != sample.tokens.shape:
        reason = f"has {sample.logprobs.size} log-probs for {sample.tokens.size} tokens"
        raise _wrong(path, sample.where, "logprobs", reason)
    # Of samples that were cut the limit is not known, as it was another run's.
    limit = dataclasses.replace(sampling, max_new_tokens=len(sample.tokens))
    checked = _sampled(sample, sampling, source)
    known = checked.logprobs if sample.logprobs is not None else np.zeros(len(sample.tokens), "<f4")
    checked = dataclasses.replace(
        checked, logprobs=known, versions=np.zeros(len(sample.tokens), np.int32)
    )
    if why := defect([checked], limit, vocabulary, decode=source.decode):
        raise _wrong(path, sample.where, "tokens or logprobs", why.removeprefix("sample 0 "))


def _wrong(path: str, where: str, column: str, reason: str) -> ConfigError:
    return ConfigError(LOGGED, path, f"{where}, column {column}: {reason}")


def _sampled(sample: _Sample, sampling: SamplingParams, source: PromptSource) -> Sampled:
    tokens, strings = sample.tokens, sampling.stop_strings
    stopped = int(tokens[-1]) in sampling.stop_ids or (
        bool(strings) and end_of(tokens, strings, source.decode) == len(tokens)
    )
    return Sampled(
        seed=sample.seed,
        tokens=tokens,
        logprobs=np.full(len(tokens), np.nan, np.float32)
        if sample.logprobs is None
        else sample.logprobs,
        versions=np.full(len(tokens), NO_VERSION, np.int32),
        finish="stop" if stopped else "length",
    )


def _scored(
    path: str,
    number: int,
    prompt: Prompt,
    samples: Sequence[_Sample],
    sampling: SamplingParams,
    source: PromptSource,
) -> ScoredGroup:
    sampled = [_sampled(sample, sampling, source) for sample in samples]
    episodes = single_turn(source, prompt.tokens, sampled)
    for sample, episode in zip(samples, episodes, strict=True):
        if sample.text not in (None, episode.text):
            raise ConfigError(
                LOGGED,
                path,
                f"{sample.where} has the text {one_line(repr(sample.text), 60)}, and its tokens "
                f"are {one_line(repr(episode.text), 60)} here: another tokenizer has made them",
            )
    parts = [prompt.tokens, *(p for s in sampled for p in (s.tokens, s.logprobs))]
    parts += [np.array([s.score.total for s in samples])]
    parts += [rewards for s in samples for rewards in s.score.token_rewards]
    identity = f"{number}-{checksum(b''.join(part.tobytes() for part in parts))}"
    return ScoredGroup(
        id=number,
        attempt=1,
        prompt=dataclasses.replace(prompt, id=identity),
        episodes=episodes,
        # Which rewards its parts are of, only the config of the other run says.
        scores=tuple(dataclasses.replace(sample.score, parts=()) for sample in samples),
    )


# --- a run -------------------------------------------------------------------------------------


def _of_run(path: str, temperature: Any) -> tuple[Iterator[_Group], str]:
    """Returns the scored groups of a run in issue order, and what is left out, in words.

    Args:
      temperature: at which they must have been sampled; None: at any.
    """
    files = RunFiles(path, makes_root=False)
    try:
        document = yaml.safe_load(files.config())
    except ConfigError as error:
        reason = f"{error.reason}; or name a table, a file that ends in {_TABLE}"
        raise ConfigError(LOGGED, path, reason) from None
    except yaml.YAMLError as error:
        raise ConfigError(LOGGED, path, f"has a config that is not valid YAML: {error}") from error
    journal.check_format(files)
    section = document.get("rlax") if isinstance(document, dict) else None
    rollouts = section.get("rollouts") if isinstance(section, dict) else None
    found = rollouts.get("temperature", 1.0) if isinstance(rollouts, dict) else 1.0
    if temperature is not None and isinstance(found, dict):
        reason = "has samples of a temperature that changed, with whose log-probs the objective "
        raise ConfigError(LOGGED, path, f"{reason}cannot work: use behaviour_cloning or awr")
    if temperature not in (None, found):
        reason = f"must be {found}, at which the logged samples were generated: the objective "
        reason += "compares their log-probs with the trainer's"
        raise ConfigError("rlax.rollouts.temperature", temperature, reason)
    groups: dict[int, ScoredGroup] = {}
    removed = 0
    for segment, _ in journal.read(files):
        try:
            for one in journal.read_samples(files, segment):
                groups[one.group.id] = one.group  # accepted, and later trained: the same samples
        except NotKeptError:
            removed += 1
    left_out = f"; the samples of {removed} segments were not kept" if removed else ""
    ordered = (groups[group_id] for group_id in sorted(groups))
    return (_of_group(path, group) for group in ordered), left_out


def _of_group(path: str, group: ScoredGroup) -> _Group:
    samples: list[_Sample] = []
    for episode, score in zip(group.episodes, group.scores, strict=True):
        where = f"group {group.id}, sample {episode.index}"
        turns = [turn for one in episode.trajectories for turn in one.turns]
        if len(turns) != 1:
            raise _wrong(path, where, "tokens", f"has {len(turns)} turns, only one is supported")
        sampled = turns[0].sampled
        # That run may have trained on a log without log-probs itself.
        unknown = episode.demonstration or np.isnan(sampled.logprobs).all()
        logprobs = None if unknown else sampled.logprobs
        if sampled.finish is not None and isinstance(score, Score):  # else no reward judged it
            rest = score, sampled.seed, episode.text, episode.demonstration
            samples.append(_Sample(where, sampled.tokens, logprobs, *rest))
    return _Group(group.prompt, samples)


# --- a table -----------------------------------------------------------------------------------


def _is_list(of: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: (
        (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and of(kind.value_type)
    )


_COLUMNS: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "group": ("integers", pa.types.is_integer),
    "prompt": ("texts", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    "prompt_tokens": ("lists of integers", _is_list(pa.types.is_integer)),
    "tokens": ("lists of integers", _is_list(pa.types.is_integer)),
    "logprobs": ("lists of floats", _is_list(pa.types.is_floating)),
    "reward": ("floats", pa.types.is_floating),
}


def _of_table(path: str, source: PromptSource) -> Iterator[_Group]:
    files, name = file_at(path)
    try:
        file = pq.ParquetFile(pa.BufferReader(files.get(name)))
        columns = [c for c in _COLUMNS if c in file.schema_arrow.names]
        table = file.read(columns)
    except FileNotFoundError:
        raise ConfigError(LOGGED, path, "does not exist") from None
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(LOGGED, path, f"is no Parquet file that can be read: {error}") from error
    for needed in ("tokens", "reward"):
        if needed not in columns:
            raise ConfigError(LOGGED, path, f"has no column {needed}")
    if not {"prompt", "prompt_tokens"} & set(columns):
        raise ConfigError(LOGGED, path, "has neither a column prompt_tokens nor prompt")
    for column in columns:
        kind, (wanted, fits) = table.schema.field(column).type, _COLUMNS[column]
        if not fits(kind):
            raise ConfigError(LOGGED, path, f"column {column}: has {kind}, expected {wanted}")
    return _groups_of(path, table, source)


def _groups_of(path: str, table: pa.Table, source: PromptSource) -> Iterator[_Group]:
    # A few at a time: each token becomes an object of Python.
    some = table.to_batches(max_chunksize=_AT_ONCE)
    rows = enumerate((row for batch in some for row in batch.to_pylist()), 1)
    ended: set[Any] = set()
    # Without the column every row is a group of its own.
    for key, found in itertools.groupby(rows, lambda one: one[1].get("group", one[0])):
        of_group = list(found)
        if key is None or key in ended:
            why = "is null" if key is None else f"has {key} again: rows of a group must be together"
            raise _wrong(path, f"row {of_group[0][0]}", "group", why)
        ended.add(key)
        samples: list[_Sample] = []
        prompt: Prompt | None = None
        for number, row in of_group:
            where = f"row {number}"
            tokens = _prompt_tokens(path, where, row, source)
            if prompt is None:
                text = row.get("prompt") or source.decode(tokens)
                prompt = Prompt(f"row {number}", tokens, text, "", EMPTY)
            elif not np.array_equal(tokens, prompt.tokens):
                raise _wrong(path, where, "group", "has another prompt than the row before it")
            logprobs = None
            if "logprobs" in row:
                logprobs = _array(path, where, row, "logprobs", np.float32)
            if row["reward"] is None:
                raise _wrong(path, where, "reward", "is null, must be a number")
            answer = _array(path, where, row, "tokens", np.int32)
            samples.append(_Sample(where, answer, logprobs, Score(row["reward"])))
        assert prompt is not None, "a group has a row"
        yield _Group(prompt, samples)


def _prompt_tokens(path: str, where: str, row: dict[str, Any], source: PromptSource) -> np.ndarray:
    if "prompt_tokens" in row:
        return _array(path, where, row, "prompt_tokens", np.int32)
    if not row["prompt"]:
        raise _wrong(path, where, "prompt", "is null, or empty")
    try:
        return np.array(source.encode(row["prompt"]), np.int32)
    except ValueError as error:
        raise _wrong(path, where, "prompt", f"cannot be encoded: {error}") from error


def _array(path: str, where: str, row: dict[str, Any], name: str, dtype: Any) -> np.ndarray:
    values = row[name]
    if values is None or None in values:
        raise _wrong(path, where, name, "is null, or has a null in it")
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise _wrong(path, where, name, "has a number beyond int32, which is no token id") from None
