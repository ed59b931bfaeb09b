"""Why a run ends that has issued group after group for one step and got no batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlax_plugin.controller.batch_rule import BatchRule
from rlax_plugin.errors import TrainingError
from rlax_plugin.types import Group

ALL_FAILED = "all rewards failed"
"""The reason of a group without a single reward; every other reason is a filter's."""


def too_few_accepted(
    step: int,
    issued: int,
    rule: BatchRule,
    ready: Sequence[Group],
    scored: Sequence[tuple[Group, str | None]],
) -> TrainingError:
    """The error of a step that ``rlax.curation.max_refill`` gives up.

    Args:
      issued: groups, for this step.
      ready: accepted groups that wait for it.
      scored: groups scored since the last batch, each with the reason why it was rejected.
    """
    reasons = Counter(reason for _, reason in scored if reason)
    rejected = ", ".join(f"{count} because {why}" for why, count in reasons.most_common())
    return TrainingError(
        f"step {step}: {issued} groups were issued and only {rule.shortfall(ready)} were accepted "
        f"(rejected: {rejected or 'none'}). {_why(reasons, rule, scored)}"
    )


def _why(reasons: Counter[str], rule: BatchRule, scored: Sequence[tuple[Group, str | None]]) -> str:
    if reasons and reasons.most_common(1)[0][0] == ALL_FAILED:
        errors = (
            rollout.reward_error
            for group, reason in scored
            if reason == ALL_FAILED
            for rollout in group.rollouts
            if rollout.reward_error
        )
        example = next(errors, "no reason was given")
        return f"Rewards fail, such as: {example}; logs/rewards.log says more"
    return f"{rule.too_few(reasons.total())}; rlax.curation.max_refill sets the limit"
