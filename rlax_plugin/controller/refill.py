"""Why a run ends that has issued group after group for one step and got no batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlax_plugin.controller.batch_rule import BatchRule
from rlax_plugin.errors import TrainingError
from rlax_plugin.records import events as ev
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Judged, Rejected, ScoredGroup, Unscored

ALL_FAILED = "all rewards failed"
"""The reason of a group without a single reward; every other reason is a filter's."""
_MOST_REASONS = 10  # a filter may put numbers into its reasons
_LONGEST = 200  # characters of a sample in a message


def counted(reasons: Counter[str]) -> str:
    """For messages: how many groups were rejected for each reason, the most frequent first."""
    told = [f"{count} because {why}" for why, count in reasons.most_common(_MOST_REASONS)]
    if (others := len(reasons) - len(told)) > 0:
        rest = sum(count for _, count in reasons.most_common()[_MOST_REASONS:])
        told.append(f"{rest} for {others} other reasons")
    return ", ".join(told) or "none"


def too_few_accepted(
    step: int,
    issued: int,
    rule: BatchRule,
    ready: Sequence[ScoredGroup],
    scored: Sequence[Judged],
) -> TrainingError:
    """The error of a step that ``rlax.curation.max_refill`` gives up.

    Args:
      issued: groups, for this step.
      ready: accepted groups that wait for it.
      scored: groups scored since the last batch.
    """
    reasons = Counter(
        one.reason
        for one in scored
        if isinstance(one, Rejected) and one.reason != ev.NOT_NEEDED  # which no filter decides
    )
    return TrainingError(
        f"step {step}: {issued} groups were issued and only {rule.shortfall(ready)} were accepted "
        f"(rejected: {counted(reasons)}). {_why(reasons, rule, scored)}"
    )


def _why(reasons: Counter[str], rule: BatchRule, scored: Sequence[Judged]) -> str:
    if reasons and reasons.most_common(1)[0][0] == ALL_FAILED:
        errors = (
            score.reason
            for one in scored
            if isinstance(one, Rejected) and one.reason == ALL_FAILED
            for score in one.group.scores
            if isinstance(score, Unscored)
        )
        example = next(errors, "no reason was given")
        return f"Rewards fail, such as: {example}; logs/rewards.log says more"
    advice = "rlax.curation.max_refill sets the limit, and rlax measure finds prompts that teach"
    return f"{rule.too_few(reasons.total())}; {advice}{_example(scored)}"


def _example(scored: Sequence[Judged]) -> str:
    """The best sample of the newest rejected group: no record of this step is written any more."""
    for one in reversed(scored):
        if isinstance(one, Rejected) and not np.isnan(one.group.rewards).all():
            best = int(np.nanargmax(one.group.rewards))
            text, reward = one.group.episodes[best].text, one.group.rewards[best]
            of = f"prompt {one.group.prompt.id!r} was answered with '{one_line(text, _LONGEST)}'"
            return f". For example, {of}, which has the reward {reward:g}"
    return ""
