"""The metrics of one step, and their sums over a run in ``summary.json``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import (
    EMPTY,
    Episode,
    Judged,
    Rejected,
    Score,
    ScoredGroup,
    TrainBatch,
    group_of,
    staleness_of,
)
from rlax_plugin.config import RlaxSection, Schedule, distinct_names
from rlax_plugin.run.metrics.spans import Span
from rlax_plugin.run.state import events as ev
from rlax_plugin.training.objective import diagnostics
from rlax_plugin.training.objective.batches import positions_taken

_MOST_REWARD_METRICS = 32  # a reward may invent names
_OF_TRAINER = ("learning/", "demonstrations/")


@dataclass(slots=True)
class StepStats:
    """Events and times between two batches, from which the step's metrics are computed."""

    scored: list[Judged] = field(default_factory=list)
    # Group -> it with the sample that a demonstration has replaced; none of an earlier process.
    as_sampled: dict[int, ScoredGroup] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)  # endings of requests and groups
    dropped: int = 0
    cancelled: int = 0
    guidance_refused: int = 0  # demonstrations that could not take the place of a sample
    samples_saved: int = 0
    tokens_saved: int = 0
    issued: int = 0
    first_issued_s: float = math.inf  # of time.perf_counter
    last_generated_s: float = -math.inf
    reward_s: float = 0.0  # summed over groups, which are scored side by side
    commit_s: float = 0.0  # until the batch was on disk
    committed: Future[Any] | None = None  # done then; None: it was on disk before
    spans: list[Span] = field(default_factory=list)  # of time.perf_counter
    steps_ahead: Mapping[str, int] = EMPTY  # of each of several environments
    stage: int | None = None  # stages of rlax.curation.stages that are over; None: there are none

    def count(self, event: ev.Event) -> None:
        """Counts an event: groups issued or dropped, and samples not generated to the end."""
        match event:
            case ev.Issued():
                self.issued += len(event.prompts)
            case ev.Reissued():
                self.requests[event.ending] += 1
            case ev.Dropped():
                self.requests[event.reason] += 1
                self.dropped += 1
                self._save(event.samples, event.tokens)
            case ev.Scored():
                if event.rejected == Ending.NOT_NEEDED:  # the reasons of filters are no endings
                    self.requests[event.rejected] += 1
                self._save(event.samples_saved, event.tokens_saved)

    def _save(self, samples: int, tokens: int) -> None:
        self.cancelled += samples > 0
        self.samples_saved += samples
        self.tokens_saved += tokens

    @property
    def generate_s(self) -> float:
        """Seconds from the first group issued to the last one generated."""
        return max(0.0, self.last_generated_s - self.first_issued_s)


@dataclass(slots=True)
class StepTimes:
    """Durations within one step in seconds, measured on the trainer's thread."""

    wait_s: float = 0.0  # for the batch
    train_s: float = 0.0  # from the batch to the finished update
    publish_s: float = 0.0  # the loop's own part of publishing
    write_s: float = 0.0  # of the newest version that is written, beside the loop
    written_bytes: int = 0  # of that version
    whole_s: float = 0.0  # from one finished step to the next
    ended_s: float = 0.0  # of time.perf_counter
    spans: list[Span] = field(default_factory=list)  # of time.perf_counter


@dataclass(slots=True)
class FinishedStep:
    """A finished step: its batch, times, statistics and the trainer's metrics.

    Attributes:
      sent_bytes: bytes of arrays sent to the trainer's other hosts; None: there are none.
    """

    batch: TrainBatch
    stats: StepStats
    metrics: Mapping[str, Any]
    times: StepTimes = field(default_factory=StepTimes)
    sent_bytes: int | None = None

    @property
    def step(self) -> int:
        return self.batch.step


def step_metrics(
    done: FinishedStep,
    section: RlaxSection,
    *,
    workers: int,
    replaced: int,
    wanted: int | None = None,
    figures: Sequence[Mapping[str, float]] = (),
    schedules: Mapping[str, Schedule] = EMPTY,
) -> dict[str, float]:
    """Returns the metrics of one step, named ``stage/name``; waits for the device's figures.

    Args:
      wanted: number of workers that the launcher keeps; None: it does not change their number.
      replaced: number of reward processes replaced since the last step.
      figures: the newest figures of each worker.
      schedules: dotted key -> schedule of each number of the config that changes.
    """
    as_sampled = done.stats.as_sampled
    scored = [as_sampled.get(g.id, g.of_policy) for g in map(group_of, done.stats.scored)]
    groups = done.batch.groups
    rewards = np.concatenate([g.rewards for g in scored]) if scored else np.zeros(0)
    lengths = [episode.tokens for g in scored for episode in g.episodes]
    laid_out = done.batch.selected.groups
    trained = [episode.tokens for g in laid_out for episode in g.episodes]
    staleness = [staleness_of(done.step, g.oldest_version) for g in groups]
    rejected = [
        one
        for one in done.stats.scored
        if isinstance(one, Rejected) and one.reason != Ending.NOT_NEEDED
    ]
    screened = [g for g in rejected if len(g.group.episodes) < section.rollouts.group_size]
    positions = positions_taken(section, laid_out)
    metrics = {
        "reward/errors": float(np.isnan(rewards).sum()),
        "reward/processes_replaced": float(replaced),
        "curation/groups_issued": float(done.stats.issued),
        "curation/groups_scored": float(len(scored)),
        "curation/groups_rejected": float(len(rejected)),
        "curation/groups_screened": float(len(screened)),
        "curation/groups_dropped": float(done.stats.dropped),
        "curation/groups_cancelled": float(done.stats.cancelled),
        "curation/samples_saved": float(done.stats.samples_saved),
        "curation/tokens_saved": float(done.stats.tokens_saved),
        "length/trained_mean": float(np.mean(trained)) if trained else 0.0,
        "batch/groups": float(len(groups)),
        "batch/groups_equal": _equal(groups),
        # Of all rows, empty ones too, and of their real tokens, prompts included.
        "batch/rows": float(section.batch_rows),
        "batch/tokens": float(positions),
        "batch/packing_efficiency": positions / (section.batch_rows * section.row_tokens),
        "staleness/max": float(max(staleness, default=0)),
        "staleness/mean": float(np.mean(staleness)) if staleness else 0.0,
        "rollout/samples": float(len(lengths)),
        "rollout/tokens": float(sum(lengths)),
        "rollout/workers": float(workers),
        "train/tokens": float(sum(trained)),
        "train/published_bytes": float(done.times.written_bytes),
        "time/wait_s": done.times.wait_s,
        "time/generate_s": done.stats.generate_s,
        "time/reward_s": done.stats.reward_s / max(1, len(scored)),
        "time/commit_s": done.stats.commit_s,
        "time/train_s": done.times.train_s,
        "time/publish_on_loop_s": done.times.publish_s,
        "time/publish_s": done.times.write_s,
        "time/step_s": done.times.whole_s,
    }
    if done.batch.repeats:
        repeats = np.concatenate(done.batch.repeats)
        metrics["curation/samples_left_out"] = float(np.sum(repeats == 0))
        metrics["curation/samples_repeated"] = float(np.sum(repeats > 1))
    if section.objective.guidance is not None:
        shown = [e.tokens for g in groups for e in g.episodes if e.demonstration]
        metrics["curation/groups_guided"] = float(len(shown))
        metrics["curation/guidance_refused"] = float(done.stats.guidance_refused)
        metrics["train/guided_tokens"] = float(sum(shown))
    if done.sent_bytes is not None:
        metrics["train/sent_bytes"] = float(done.sent_bytes)
    if wanted is not None:
        metrics["rollout/workers_wanted"] = float(wanted)
    endings = done.stats.requests + Counter(ending for g in scored for ending in g.endings)
    metrics |= {f"episode_ended/{ending}": float(count) for ending, count in endings.items()}
    if streamed := [one for one in figures if one.get("stream_s")]:
        metrics["rollout/stream_bytes"] = sum(one.get("stream_bytes", 0.0) for one in streamed)
        metrics["rollout/stream_s"] = max(one["stream_s"] for one in streamed)
    if done.stats.stage is not None:
        metrics["curation/stage"] = float(done.stats.stage)
    # Of all scored groups, also those that were rejected: the policy's own figures.
    if lengths:
        metrics["length/issued_mean"] = float(np.mean(lengths))
        metrics["length/issued_max"] = float(np.max(lengths))
    if np.isfinite(rewards).any():
        metrics["reward/mean"] = float(np.nanmean(rewards))
        if not section.environments:
            metrics |= _reward_parts(scored, section)
        metrics |= _reward_metrics(scored)
    if section.several_turns:
        metrics |= _episodes([episode for group in scored for episode in group.episodes])
    for name, own in section.by_environment.items() if section.environments else ():
        metrics |= _environment(name, own, section, done, scored)
    if done.metrics:  # there are none yet when a checkpoint is about to be saved
        metrics.update(diagnostics.summarise(done.metrics))
    for key, schedule in schedules.items():
        metrics[f"schedule/{key.removeprefix('rlax.')}"] = schedule.at(done.step)
    # What the trainer itself reports: loss, gradient norm, learning rate, ...
    metrics |= {k: float(v) for k, v in done.metrics.items() if k.startswith(_OF_TRAINER)}
    return metrics


def _environment(
    name: str,
    own: RlaxSection,
    section: RlaxSection,
    done: FinishedStep,
    scored: Sequence[ScoredGroup],
) -> dict[str, float]:
    """Returns the metrics of one of several environments.

    Args:
      own: its section.
      scored: the groups of all that were scored since the last step.
    """
    groups = [g for g in done.batch.groups if section.environment_of(g.prompt.id) == name]
    scored = [g for g in scored if section.environment_of(g.prompt.id) == name]
    found = {
        "groups": float(len(groups)),
        "groups_scored": float(len(scored)),
        "steps_ahead": float(done.stats.steps_ahead.get(name, own.staleness.steps_ahead)),
    }
    if groups:
        staleness = [staleness_of(done.step, g.oldest_version) for g in groups]
        found |= {"staleness_max": max(staleness), "staleness_mean": float(np.mean(staleness))}
        trained = [episode.tokens for g in groups for episode in g.episodes]
        found["length_trained_mean"] = float(np.mean(trained))
    if scored:
        episodes = [episode for g in scored for episode in g.episodes]
        found["length_issued_mean"] = float(np.mean([episode.tokens for episode in episodes]))
        if own.several_turns:
            found["turns_mean"] = _episodes(episodes)["episode/turns_mean"]
        rewards = np.concatenate([g.rewards for g in scored])
        if np.isfinite(rewards).any():
            found["reward_mean"] = float(np.nanmean(rewards))
            for part, mean in _reward_parts(scored, own).items():
                found[part.replace("/", "_")] = mean
    return {f"environment_{name}/{figure}": value for figure, value in found.items()}


def _equal(groups: Sequence[ScoredGroup]) -> float:
    """Returns the share of groups whose scored samples all have the same reward."""
    equal = [len(set(g.rewards[np.isfinite(g.rewards)].tolist())) <= 1 for g in groups]
    return float(np.mean(equal)) if equal else 0.0


def _episodes(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns metrics of turns and of the environment's input; includes rejected episodes."""
    turns = [[turn for one in e.trajectories for turn in one.turns] for e in episodes]
    given = sum(len(turn.given) for later in turns for turn in later[1:])
    metrics = {"episode/given_tokens": float(given)}
    if turns:
        metrics["episode/turns_mean"] = float(np.mean([len(of_one) for of_one in turns]))
    return metrics


def _reward_parts(scored: Sequence[ScoredGroup], section: RlaxSection) -> dict[str, float]:
    """Returns the mean of each reward without its weight; {} if there is one, equal to the total.

    Rewards that are used twice get an index suffix.
    """
    if section.trains_on_log:  # its rewards are not this run's
        return {}
    if len(section.rewards) < 2 and all(choice.weight == 1 for choice in section.rewards):
        return {}
    names = distinct_names([choice.metric_name for choice in section.rewards])
    parts = [s.parts for g in scored for s in g.scores if isinstance(s, Score)]
    means = np.mean(parts, axis=0)
    return {f"reward_part/{name}": float(mean) for name, mean in zip(names, means, strict=True)}


def _reward_metrics(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Returns the mean of the most common reward metrics, over the samples that have them."""
    found: dict[str, list[float]] = {}
    for score in (s for g in scored for s in g.scores if isinstance(s, Score)):
        for name, value in score.metrics.items():
            found.setdefault(name, []).append(value)
    names = sorted(found, key=lambda name: (-len(found[name]), name))[:_MOST_REWARD_METRICS]
    return {f"reward_metric/{name}": float(np.mean(found[name])) for name in names}
