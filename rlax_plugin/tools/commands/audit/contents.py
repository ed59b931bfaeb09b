"""Compares the samples on disk with the events that describe them."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import (
    NO_VERSION,
    Episode,
    Rejected,
    Sampled,
    Score,
    ScoredGroup,
    staleness_of,
)
from rlax_plugin.config import value_at
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import JournalError, NotKeptError, Segment
from rlax_plugin.run.state.pruned import read_pruned
from rlax_plugin.run.state.read_samples import RecordedGroup, as_batch
from rlax_plugin.tools.commands.audit.event_order import Alive, History
from rlax_plugin.tools.commands.audit.record_limits import Limits
from rlax_plugin.tools.commands.audit.report import Figures, Findings, Rule
from rlax_plugin.training.objective.batches import repeats_problem, sizes
from rlax_plugin.training.objective.placing import place
from rlax_plugin.training.objective.shared_prompts import branches, place_shared

_PER_TOKEN = ("tokens", "logprobs", "versions")


class Contents:
    """Checks the files that segments name, after a segment's events were added up.

    It needs 16 bytes of memory per sample, for its seed.
    """

    def __init__(self, files: RunFiles, limits: Limits, figures: Figures, findings: Findings):
        self._files, self._limits = files, limits
        self._figures, self._findings = figures, findings
        self._seeds, self._groups = array("Q"), array("q")  # of all samples scored
        self._not_kept = 0  # segments

    def check(self, segment: Segment, history: History) -> None:
        """Checks the files of a segment.

        Raises:
          RlaxError: an existing file cannot be read.
        """
        recorded = self._read(segment, history)
        if recorded is None:
            return  # reported, or not kept; who should be where is not known
        batch = [one for one in recorded if one.advantages is not None]
        others = [one for one in recorded if one.advantages is None]
        self._check_batch(segment, batch, history)
        in_batch = [one.group.id for one in batch]
        wanted = sorted(history.scored.keys() - in_batch)
        self._check_ids(Rule.SAMPLES_DIFFER, "the samples beside it", others, wanted, None)
        for found in recorded:
            if (one := history.scored.get(found.group.id)) is not None:
                self._check_scored(found, one)
            elif (one := history.batch.get(found.group.id)) is not None and one.digest:
                self._check_unchanged(found, one, segment.step)
        for found in others:
            if (one := history.alive.get(found.group.id)) is not None:
                one.digest = _digest(found)

    def end(self) -> None:
        """Reports samples of two groups that share a seed, and segments without kept samples."""
        if self._not_kept:
            said = read_pruned(self._files)
            self._findings.warning(
                f"{said}: of {self._not_kept} segments only the events were checked"
            )
        seeds, groups = np.array(self._seeds), np.array(self._groups)
        order = np.argsort(seeds, kind="stable")
        seeds, groups = seeds[order], groups[order]
        for i in np.flatnonzero((seeds[1:] == seeds[:-1]) & (groups[1:] != groups[:-1])):
            one, other = int(groups[i]), int(groups[i + 1])
            self._findings.violation(
                Rule.REPEATED_SEED,
                f"group {other}: expected a seed of its own for every sample, found {seeds[i]}, "
                f"which is of group {one} as well",
                group=other,
            )

    def _read(self, segment: Segment, history: History) -> list[RecordedGroup] | None:
        try:
            return journal.read_samples(self._files, segment)
        except NotKeptError:
            self._not_kept += 1
            self._check_events(segment, history)
            return None
        except JournalError as error:
            self._findings.violation(Rule.SAMPLES_DIFFER, str(error), step=segment.step)
            return None

    def _check_ids(
        self,
        rule: Rule,
        where: str,
        recorded: Sequence[RecordedGroup],
        wanted: list[int],
        step: int | None,
    ) -> bool:
        found = [one.group.id for one in recorded]
        if step is None:
            found.sort()  # only a batch has an order
        if found == wanted:
            return True
        differing = sorted(set(found) ^ set(wanted))
        self._findings.violation(
            rule,
            f"expected the groups {wanted} in {where}, found {found}",
            step=step,
            group=differing[0] if differing else None,
        )
        return False

    # --- a batch -------------------------------------------------------------------------------

    def _check_step(self, segment: Segment, history: History) -> bool:
        step, steps = segment.step, [event.step for event in history.trained]
        if steps == ([] if step is None else [step]):
            return True
        self._findings.violation(
            Rule.STEP_ORDER,
            f"the segment commits the batch of step {step} and says that steps {steps} train: "
            "expected the same one, or none",
            step=step,
        )
        return False

    def _check_events(self, segment: Segment, history: History) -> None:
        """Checks the events of a batch whose samples are not kept."""
        step = segment.step
        if not self._check_step(segment, history) or step is None:
            return
        generated = {g: one.generated for g, one in history.batch.items() if one.generated}
        for group, event in generated.items():
            if event.oldest_version is not None and event.newest_version is not None:
                self._check_versions(group, step, event.oldest_version, event.newest_version)
            self._figures.samples += event.samples
            self._figures.tokens += event.tokens
        oldest = [version for e in generated.values() if (version := e.oldest_version) is not None]
        self._check_staleness(step, oldest, history)

    def _check_staleness(self, step: int, oldest: list[int], history: History) -> None:
        """Compares the staleness in ``Trained`` with the oldest version of each of its groups."""
        (trained,) = history.trained
        staleness = staleness_of(step, min(oldest, default=step))
        self._figures.max_staleness = max(self._figures.max_staleness, staleness)
        if len(oldest) == len(trained.groups) and staleness != trained.staleness:
            self._findings.violation(
                Rule.STALENESS_DIFFERS,
                f"step {step} says that its staleness is {trained.staleness}: expected "
                f"{staleness}, as its samples say",
                step=step,
            )

    def _check_batch(self, segment: Segment, batch: list[RecordedGroup], history: History) -> None:
        step = segment.step
        if not self._check_step(segment, history):
            return
        wanted = [group for event in history.trained for group in event.groups]
        same = self._check_ids(Rule.BATCH_DIFFERS, f"the batch of step {step}", batch, wanted, step)
        if not same or step is None:
            return
        oldest = []
        for recorded in batch:
            group, problem = recorded.group, _malformed(recorded, self._limits)
            if problem:
                self._findings.violation(
                    Rule.BATCH_DIFFERS, f"group {group.id} {problem}", step=step, group=group.id
                )
                continue
            versions = _versions(group)
            self._check_versions(group.id, step, int(versions.min()), int(versions.max()))
            oldest.append(int(versions.min()))
            trains = recorded.repeats is None or recorded.repeats > 0
            tokens_n = np.array([episode.tokens for episode in group.episodes])
            self._figures.samples += int(np.sum(np.broadcast_to(trains, tokens_n.shape)))
            self._figures.tokens += int(np.sum(tokens_n * trains))
        if problem := self._wrong_repeats(batch):
            message = f"step {step} has {problem}"
            self._findings.violation(Rule.BATCH_DIFFERS, message, step=step)
        else:
            self._check_fits(step, as_batch(step, batch).selected.groups)
        self._check_staleness(step, oldest, history)

    def _wrong_repeats(self, batch: list[RecordedGroup]) -> str:
        """Describes repeats that no selection can have chosen; empty if they are right."""
        repeats = [one.repeats for one in batch if one.repeats is not None]
        selected = self._limits.selected
        if not selected:
            return "repeats, and the config has no rlax.curation.selection" if repeats else ""
        return repeats_problem([one.group for one in batch], repeats, selected * len(batch))

    def _check_fits(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        limits, sizes_n = self._limits, sizes(groups)
        rows = limits.rows, limits.row_tokens, limits.sequences_per_row
        if limits.shared_prompts:
            fits = place_shared([branches(group) for group in groups], *rows) is not None
        else:
            fits = place(sizes_n, *rows) is not None
        if not fits:
            self._findings.violation(
                Rule.WRONG_BATCH,
                f"step {step} trains {len(sizes_n)} samples of {sum(sizes_n)} positions: expected "
                f"as many as fit {limits.rows} rows of {limits.row_tokens}, with "
                f"{limits.sequences_per_row} samples each at most",
                step=step,
            )

    def _check_versions(self, group: int, step: int, oldest: int, newest: int) -> None:
        if self._limits.logged:
            if (oldest, newest) != (NO_VERSION, NO_VERSION):
                message = (
                    f"group {group} trains at step {step} with tokens of versions {oldest} to "
                    f"{newest}: expected {NO_VERSION}, as those of logged samples"
                )
                self._findings.violation(Rule.MIXED_VERSIONS, message, step=step, group=group)
            return
        if newest >= step:
            message = (
                f"group {group} trains at step {step} with tokens of version {newest}: expected "
                f"at most {step - 1}"
            )
            self._findings.violation(Rule.FUTURE_VERSION, message, step=step, group=group)
        if step - oldest > (limit := self._limits.max_staleness):
            message = (
                f"group {group} trains at step {step} with tokens of version {oldest}: expected a "
                f"staleness of at most {limit}, found {step - oldest}"
            )
            self._findings.violation(Rule.TOO_STALE, message, step=step, group=group)

    def _check_unchanged(self, recorded: RecordedGroup, one: Alive, step: int | None) -> None:
        group = recorded.group
        if (found := _digest(recorded)) != one.digest:
            message = (
                f"group {group.id} trains with samples of checksum {found}: expected "
                f"{one.digest}, those of segment {one.segment}, in which it was scored"
            )
            self._findings.violation(Rule.SAMPLES_CHANGED, message, step=step, group=group.id)

    # --- a group that was scored ---------------------------------------------------------------

    def _check_scored(self, recorded: RecordedGroup, one: Alive) -> None:
        group, judged = recorded.group, recorded.judged
        rejected = judged.reason if isinstance(judged, Rejected) else None
        logged = self._limits.logged  # the same sample in each epoch
        seeds = [] if logged else [sampled.seed for sampled in group.sampled]
        self._seeds.extend(seeds)
        self._groups.extend([group.id] * len(seeds))
        problems = (
            (Rule.GENERATION_DIFFERS, self._generation(group, one)),
            (Rule.JUDGEMENT_DIFFERS, self._judgement(group, rejected, one)),
            (Rule.MIXED_VERSIONS, self._mixed(group)),
            (Rule.REPEATED_SEED, None if logged else _repeated_seed(group)),
            (Rule.JUDGEMENT_DIFFERS, self._guidance(group)),
        )
        for rule, problem in problems:
            if problem:
                message = f"group {group.id}: {problem}"
                self._findings.violation(rule, message, group=group.id)

    def _generation(self, group: ScoredGroup, one: Alive) -> str | None:
        event = one.generated
        if event is None:
            return None  # reported, or nothing of it was scored
        versions = _versions(group)
        said = {
            "prompt": one.prompt,
            "attempt": event.attempt,
            "samples": event.samples,
            "turns": event.turns,
            "tokens": event.tokens,
            "oldest version": event.oldest_version,
            "newest version": event.newest_version,
        }
        schedule = self._limits.temperature
        said["temperature"] = None if schedule is None else schedule.at(one.step)
        found = {
            "prompt": group.prompt.id,
            "attempt": group.attempt,
            "samples": len(group.episodes),
            "turns": sum(1 for _ in group.sampled),
            "tokens": sum(episode.tokens for episode in group.episodes),
            "oldest version": int(versions.min()) if len(versions) else None,
            "newest version": int(versions.max()) if len(versions) else None,
            "temperature": group.temperature,
        }
        return _first_difference(said, found)

    def _judgement(self, group: ScoredGroup, rejected: str | None, one: Alive) -> str | None:
        event = one.scored
        assert event is not None
        said = {
            "reason for rejection": event.rejected,
            "rewards": event.scored,
            "passed samples": event.passed,
        }
        found = {
            "reason for rejection": rejected,
            "rewards": int(np.sum(~np.isnan(group.rewards))),
            "passed samples": int(np.sum(group.of_policy.rewards >= self._limits.pass_threshold)),
        }
        weights_of = self._limits.reward_weights
        name = self._limits.environment_of(one.prompt)
        weights = [value_at(weight, one.step) for weight in weights_of.get(name, ())]
        return _first_difference(said, found) or _wrong_total(group, weights)

    def _guidance(self, group: ScoredGroup) -> str | None:
        """Describes what is wrong with a demonstration in a group; None if nothing is."""
        pairs = list(zip(group.episodes, group.scores, strict=True))
        shown = [score for episode, score in pairs if episode.demonstration]
        if not shown:
            return None
        if not self._limits.guided:
            return "has a demonstration, and the config has no rlax.objective.guidance"
        if len(shown) > 1 or not pairs[-1][0].demonstration:
            return "expected at most one demonstration, in place of the last sample"
        own = group.of_policy.rewards
        if np.isnan(own).any() or (own >= self._limits.pass_threshold).any():
            return f"has a demonstration: expected samples that all fail, found {own.tolist()}"
        (score,) = shown
        if not isinstance(score, Score) or score.total <= max(own, default=-np.inf):
            return "has a demonstration: expected that it has a higher reward than the samples"
        return None

    def _mixed(self, group: ScoredGroup) -> str | None:
        versions = _versions(group)
        if (versions == versions[:1]).all():
            return None
        goes_on = self._limits.on_new_weights == "continue"
        for episode, sampled in _samples(group):
            change = np.diff(sampled.versions)
            if np.any(change < 0 if goes_on else change != 0):
                wanted = "never an older version after a newer one" if goes_on else "one version"
                return (
                    f"sample {episode.index}: expected {wanted} (on_new_weights is "
                    f"{self._limits.on_new_weights}), found {_runs(sampled)}"
                )
        for episode in group.episodes:
            for one in episode.trajectories:
                for before, turn in itertools.pairwise(t.sampled.versions for t in one.turns):
                    if turn[0] < before[-1]:
                        return (
                            f"sample {episode.index}: expected no turn with an older version than "
                            f"the turn before it, found {turn[0]} after {before[-1]}"
                        )
        return None


def _wrong_total(group: ScoredGroup, weights: Sequence[float]) -> str | None:
    """Describes a sample whose reward is not the weighted sum of its parts; None if none is."""
    for episode, score in zip(group.episodes, group.scores, strict=True):
        if isinstance(score, Score) and weights and len(score.parts) == len(weights):
            total = math.sumprod(weights, score.parts)
            if not math.isclose(score.total, total, rel_tol=1e-9, abs_tol=1e-9):
                return (
                    f"sample {episode.index}: expected the reward {total:g}, the weighted sum of "
                    f"{list(score.parts)}, found {score.total:g}"
                )
    return None


def _first_difference(said: dict[str, object], found: dict[str, object]) -> str | None:
    for name, value in said.items():
        if found[name] != value:
            return f"{name}: expected {value!r}, as the journal says, found {found[name]!r}"
    return None


def _samples(group: ScoredGroup) -> Iterator[tuple[Episode, Sampled]]:
    return ((episode, sampled) for episode in group.episodes for sampled in episode.sampled)


def _versions(group: ScoredGroup) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *(s.versions for s in group.sampled)])


def _malformed(recorded: RecordedGroup, limits: Limits) -> str | None:
    """Returns the reason why a group cannot be part of a batch; None if it can."""
    group, advantages = recorded.group, recorded.advantages
    if advantages is None or not np.isfinite(advantages).all():
        return "has no advantages"
    indices = [episode.index for episode in group.episodes]
    size = min(len(indices), limits.group_size) if limits.logged else limits.group_size
    if not size or indices != list(range(size)):
        return f"has the samples {indices}: expected 0 to {size - 1}"
    for episode, sampled in _samples(group):
        if sampled.finish is None:
            return f"has an unfinished sample, {episode.index}"
        lengths = {len(sampled.tokens), len(sampled.logprobs), len(sampled.versions)}
        if len(lengths) > 1 or lengths == {0}:
            return f"has a sample, {episode.index}, without a log-prob and a version per token"
    return None


def _repeated_seed(group: ScoredGroup) -> str | None:
    seeds = [sampled.seed for sampled in group.sampled]
    if len(set(seeds)) == len(seeds):
        return None
    return f"expected a seed of its own for every sample, found {seeds}"


def _runs(sampled: Sampled) -> str:
    """Returns a sample's versions in order, consecutive equal ones once."""
    versions = sampled.versions
    starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
    return ", then ".join(str(int(versions[i])) for i in starts)


def _digest(recorded: RecordedGroup) -> str:
    """Returns a checksum of the generated and scored data on which training depends."""
    group, judged = recorded.group, recorded.judged
    rejected = judged.reason if isinstance(judged, Rejected) else None
    turns = [
        (e.index, number, turn)
        for e in group.episodes
        for number, one in enumerate(e.trajectories)
        for turn in one.turns
    ]
    content = [
        (group.attempt, group.prompt.id, group.prompt.tokens.tolist(), rejected),
        *(s.total if isinstance(s, Score) else None for s in group.scores),
        *([] if group.temperature is None else [group.temperature]),
        *(r.tobytes() for s in group.scores if isinstance(s, Score) for r in s.token_rewards),
        *(e.order for e in group.episodes if e.order),
        *(("demonstration", e.index) for e in group.episodes if e.demonstration),
        *((i, n, t.sampled.seed, t.sampled.finish, t.sampled.workers) for i, n, t in turns),
        *(t.given.tobytes() for _, _, t in turns),
        *(getattr(s, name).tobytes() for s in group.sampled for name in _PER_TOKEN),
        *(
            (name, array.shape, array.tobytes())
            for s in group.sampled
            for name, array in sorted(s.side.items())
        ),
    ]
    return journal.checksum(repr(content).encode())
