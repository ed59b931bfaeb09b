"""The limits that end a run whose groups or log-probs are of no use for training.

``rlax.curation.max_refill`` and ``rlax.curation.guard`` are about groups that the filters reject,
``rlax.objective.max_gap`` about a trainer and a sampler that disagree; a single worker that does
is not the run's end (``WorkerGaps``). Groups of recorded batches
are not counted again: after a resume the counts begin at 0.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import Judged, Rejected, Score, Unscored
from rlax_plugin.config import Guard, Objective
from rlax_plugin.rollout.fleet.fleet import Fleet, Worker
from rlax_plugin.rollout.fleet.identities import Identity
from rlax_plugin.run.controller.batch_rule import BatchRule
from rlax_plugin.run.metrics.step import FinishedStep
from rlax_plugin.training.objective.diagnostics import GROUP_GAPS

ALL_FAILED = "all rewards failed"
"""The reason of a group without a single reward; every other reason is a filter's."""
_MOST_REASONS = 10  # a filter may put numbers into its reasons
_LONGEST = 200  # characters of a sample in a message
ANSWERED, FAILED_SUCH_AS = "was answered with", "rewards fail, such as"
"""Words of messages after which an answer is quoted, or an error of a reward that may quote one."""
GAP = "logprob_gap/p95"
"""The metric that ``gap_error`` watches."""
GAP_STEPS = 3
"""Steps in a row above ``objective.max_gap`` that end the run."""
GAP_WARN, GAP_QUARANTINE = 1.0, 5.0
"""Mean nats a token between a worker's log-probs and the trainer's, see ``WorkerGaps``.

Engines with the trainer's weights differ by 1e-6 to .05, with weights of 8 or 4 bits by up to .3,
and weights that are a few steps older add less in a run that learns. From 1 on, importance weights
are off by a factor of e or more. At 5 it is no version of this model: a guess among 150 tokens has
that log-prob.
"""
GAP_TOKENS = 64  # few enough for one step, and so many that rare tokens do not decide
_RECOVERED = 1.5  # times ``warn``: a share that wavers around ``warn`` gives one message


def rewards_fail(error: str) -> str:
    """Returns the words for rewards most of which fail, with the newest error, which names one."""
    return f"{FAILED_SUCH_AS}: {one_line(error)}; logs/rewards.log says more"


def failure_of(scores: Sequence[Score | Unscored]) -> str:
    """Returns the first error of a group's rewards, behind its ending; empty: none failed."""
    return next((one.shown for one in scores if isinstance(one, Unscored)), "")


def _mostly_failed(reasons: Counter[str]) -> bool:
    return bool(reasons) and reasons.most_common(1)[0][0] == ALL_FAILED


def counted(reasons: Counter[str]) -> str:
    """Returns the number of rejected groups for each reason, most frequent first, for messages."""
    told = [f"{count} because {why}" for why, count in reasons.most_common(_MOST_REASONS)]
    if (others := len(reasons) - len(told)) > 0:
        rest = sum(count for _, count in reasons.most_common()[_MOST_REASONS:])
        told.append(f"{rest} for {others} other reasons")
    return ", ".join(told) or "none"


def too_few_accepted(
    step: int, issued: int, rule: BatchRule, ready: str, scored: Sequence[Judged]
) -> TrainingError:
    """Returns the error of a step that exceeds ``rlax.curation.max_refill``.

    Args:
      issued: number of groups issued for this step.
      ready: what the accepted groups fill, see ``Buffer.ready``.
      scored: groups scored since the last batch.
    """
    reasons = Counter(
        one.reason
        for one in scored
        if isinstance(one, Rejected) and one.reason != Ending.NOT_NEEDED  # which no filter decides
    )
    return TrainingError(
        f"step {step}: {issued} groups were issued and only {ready} were accepted "
        f"(rejected: {counted(reasons)}){_why(reasons, rule, scored)}"
    )


def _why(reasons: Counter[str], rule: BatchRule, scored: Sequence[Judged]) -> str:
    if _mostly_failed(reasons):
        failed = (one for one in reversed(scored) if isinstance(one, Rejected))
        errors = (failure_of(one.group.scores) for one in failed if one.reason == ALL_FAILED)
        return f": {rewards_fail(next(errors))}"
    advice = (
        "rlax.curation.max_refill sets the limit, and a table of rlax eval --split train shows "
        "which prompts teach"
    )
    return f". {rule.too_few(reasons.total())}; {advice}{_example(scored)}"


def _example(scored: Sequence[Judged]) -> str:
    """Shows the best sample of the newest rejected group, as this step will not be recorded."""
    for one in reversed(scored):
        if isinstance(one, Rejected) and not np.isnan(one.group.rewards).all():
            best = int(np.nanargmax(one.group.rewards))
            episode, reward = one.group.episodes[best], one.group.rewards[best]
            *before, last = episode.texts or (episode.text,)
            text = one_line(last, _LONGEST)
            if before:  # the reward is mostly of the last turn, which is always shown
                text = rf"{one_line('\n'.join(before), _LONGEST)}\n{text}"
            of = f"prompt {one.group.prompt.id!r} {ANSWERED} '{text}'"
            return f". For example, {of}, which has the reward {reward:g}"
    return ""


class KeptGuard:
    """Counts kept and rejected groups among the last ones, for ``rlax.curation.guard``.

    It counts in the order in which groups are scored, which deterministic mode fixes.

    Args:
      note: shows the user one line.
    """

    def __init__(self, config: Guard, note: Callable[[str], None]):
        self._config, self._note = config, note
        self._last: deque[str | None] = deque(maxlen=config.window)  # why rejected; None: kept
        self._warned, self._error = False, ""  # of the newest group without any reward
        self._rejected: tuple[Rejected, ...] = ()  # the newest with a reward
        self._stop, self._warn = self._least(config.stop), self._least(config.warn)
        self._recovered = self._least(min(1.0, _RECOVERED * config.warn))

    def _least(self, share: float) -> int:
        """Returns the smallest number of groups with this share, corrected for rounding errors."""
        return math.ceil(share * self._config.window - 1e-6)

    def scored(self, rejected: str | None, failure: str = "", judged: Judged | None = None) -> None:
        """Counts the next scored group. The guard acts only after ``window`` groups.

        Args:
          rejected: the reason; None: it was accepted.
          failure: see ``failure_of``.
          judged: the group, of which an error shows a sample.

        Raises:
          TrainingError: too few were kept.
        """
        self._last.append(rejected)
        if rejected == ALL_FAILED:
            self._error = failure
        if isinstance(judged, Rejected) and not np.isnan(judged.group.rewards).all():
            self._rejected = (judged,)
        config = self._config
        if len(self._last) < config.window:
            return
        kept = self._last.count(None)
        if kept < self._stop:
            advice = (
                "Lower it, or raise rlax.curation.guard.window, and the same command resumes the "
                "run. To keep more groups, start a new run with other rlax.curation.filters, "
                "rlax.curation.sampler or prompts; --from lets it start from these weights"
            )
            if _mostly_failed(self._reasons):
                advice = "Once the reward is mended, the same command resumes the run"
            # What is quoted is last: ``rlax doctor --bundle`` cuts the line there.
            raise TrainingError(
                f"{self._told(kept)}. rlax.curation.guard.stop = {config.stop:g} ends such a run. "
                f"{advice}{self._quoted() or _example(self._rejected)}"
            )
        if kept < self._warn:
            if not self._warned:
                limit = f"rlax.curation.guard.warn = {config.warn:g}"
                self._note(
                    f"warning: {self._told(kept)}. This is less than {limit}{self._quoted()}"
                )
            self._warned = True
        elif kept >= self._recovered:
            self._warned = False

    @property
    def _reasons(self) -> Counter[str]:
        return Counter(reason for reason in self._last if reason is not None)

    def _told(self, kept: int) -> str:
        return (
            f"of the last {len(self._last)} groups that were scored, the filters kept {kept} "
            f"(rejected: {counted(self._reasons)})"
        )

    def _quoted(self) -> str:
        return f": {rewards_fail(self._error)}" if _mostly_failed(self._reasons) else ""


@dataclass(frozen=True, slots=True)
class GroupGap:
    """The log-prob gap of a group that one worker has generated.

    Attributes:
      gap: sum over its trained tokens, in nats at temperature 1, or at its own one if that is
        higher.
      tokens: their number.
    """

    worker: str
    group: int
    gap: float
    tokens: float


def gaps_of_workers(done: FinishedStep, temperature: float) -> list[GroupGap]:
    """Returns the gaps of the groups of a step; waits for the device's figures.

    Args:
      temperature: of groups that have none of their own. It divides logits, and with them what
        rounding changes, so that low ones make the same engine differ by more.
    """
    if any(name not in done.metrics for name in GROUP_GAPS):
        return []
    gap_g, tokens_g = (np.asarray(done.metrics[name], np.float64) for name in GROUP_GAPS)
    gaps: list[GroupGap] = []
    for group, gap, tokens in zip(done.batch.groups, gap_g[1:], tokens_g[1:], strict=False):
        names = {name for sampled in group.sampled for name in sampled.workers}
        if len(names) == 1:
            scale = min(1.0, temperature if group.temperature is None else group.temperature)
            gaps.append(GroupGap(names.pop(), group.id, float(gap) * scale, float(tokens)))
    return gaps


class WorkerGaps:
    """Warns of a worker whose log-probs are not the trainer's, and quarantines one far from them.

    A mean over at least ``GAP_TOKENS`` tokens decides, of one step or of several. A worker is only
    quarantined while another one agrees with the trainer. A record knows a worker's name only: a
    process is judged by groups that were issued after it was first seen here, because earlier ones,
    also those of recorded batches, may be of another process with its name.

    Args:
      fleet: whose workers are judged.
      note: shows the user one line.
    """

    def __init__(self, fleet: Fleet, note: Callable[[str], None]):
        self._fleet, self._note = fleet, note
        self._first: dict[Identity, int] = {}  # the first group that a process is judged by
        self._sums: dict[Identity, tuple[float, float]] = {}
        self._means: dict[Identity, float] = {}  # the newest of each process

    def take(self, gaps: Sequence[GroupGap], next_group: int) -> None:
        """Judges workers after a step.

        Args:
          gaps: see ``gaps_of_workers``.
          next_group: id of the group that will be issued next.
        """
        workers = {worker.identity: worker for worker in self._fleet.workers.values()}
        self._first = {process: self._first.get(process, next_group) for process in workers}
        self._sums = {process: sums for process, sums in self._sums.items() if process in workers}
        self._means = {process: mean for process, mean in self._means.items() if process in workers}
        for one in gaps:
            worker = self._fleet.workers.get(one.worker)
            if worker is not None and one.group >= self._first[worker.identity]:
                gap, tokens = self._sums.get(worker.identity, (0.0, 0.0))
                self._sums[worker.identity] = gap + one.gap, tokens + one.tokens
        judged = [process for process, (_, tokens) in self._sums.items() if tokens >= GAP_TOKENS]
        for process in judged:
            gap, tokens = self._sums.pop(process)
            self._means[process] = gap / tokens
        for process in judged:
            self._judge(workers[process], self._means[process])

    def _judge(self, worker: Worker, mean: float) -> None:
        if mean <= GAP_WARN:
            worker.suspicion.pop(GAP, None)
            return
        text = (
            f"the log-probs of its samples differ by {mean:.3g} nats a token from the trainer's, "
            f"more than {GAP_WARN:g}"
        )
        # If no worker agrees with the trainer, it may be the trainer that is wrong.
        if mean > GAP_QUARANTINE and min(self._means.values()) <= GAP_WARN:
            self._fleet.quarantine(worker.identity, f"{text} and than {GAP_QUARANTINE:g}")
        elif worker.suspicion.setdefault(GAP, text) is text:
            self._note(f"warning: worker {worker.name}: {text}")
        else:
            worker.suspicion[GAP] = text


def gap_error(
    metrics: Mapping[str, float], newest: Sequence[float], objective: Objective
) -> TrainingError | None:
    """Returns the error that ends training after the newest step; None: training continues.

    Steps that measure no gap neither count nor interrupt the row. The history of a run that was
    resumed begins with the steps of earlier processes, so that these count too.

    Args:
      metrics: those of the newest step.
      newest: the newest values of ``GAP``, the newest last; at least ``GAP_STEPS`` of them, if
        there are so many.
    """
    limit = objective.max_gap
    if limit is None or GAP not in metrics:
        return None
    last = itertools.islice(reversed(newest), GAP_STEPS)
    row = list(itertools.takewhile(lambda p95: not p95 <= limit, last))  # NaN is no agreement
    if len(row) < GAP_STEPS:
        return None
    values = ", ".join(f"{p95:.3g}" for p95 in reversed(row))
    return TrainingError(
        f"the trainer and the rollout engine do not agree on log-probs: {GAP} was {values} nats "
        f"in the last {GAP_STEPS} steps that measured it, above rlax.objective.max_gap = "
        f"{limit:g}; raise or unset the limit to resume the run"
    )
