"""Contract of advantages: numpy, float64, over all samples of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial
from rlax_plugin.training.objective.advantages import AdvantageSlot, Outcomes, probe
from rlax_plugin.training.objective.inputs import Imitation

_SIZES = (3, 4, 5)  # samples of each group
_EQUAL = (0.1, 0.7, 1 / 3, -2.3, 1e6)  # rewards whose mean may round to something else


def outcomes(rewards: Sequence[float] | np.ndarray) -> Outcomes:
    """Three groups, of 3, 4 and 5 samples of 1 .. 6 tokens, whose members are not adjacent."""
    group_n = np.repeat(np.arange(len(_SIZES)), _SIZES)
    order = np.random.default_rng(0).permutation(group_n.size)
    lengths_n = 1 + np.arange(group_n.size) % 6
    return Outcomes(np.array(rewards, np.float64)[order], lengths_n[order], group_n[order])


MIXED = np.arange(sum(_SIZES)) % 3 / 2  # 0, 0.5, 1, 0, ...


def check_advantage(trial: Trial, part: Inspection) -> None:
    """Checks that a slot returns one advantage per sample or per token."""
    slot: AdvantageSlot = trial.built(part)

    def computed(of: Outcomes) -> np.ndarray:
        return np.asarray(slot(of), np.float64)

    with part.rule(
        "returns finite numbers, one per sample [n] or per token [n, t]",
        "return a numpy array as long as outcomes.rewards_n; guard every division by a std",
    ):
        alone = Outcomes(np.array([1.0, 0.0, 1.0]), np.array([2, 1, 3]), np.array([0, 1, 2]))
        for of in (outcomes(MIXED), alone):  # alone: groups of which one sample was scored
            advantages = computed(of)
            shapes = (of.lengths_n.shape, of.mask_nt.shape)
            message = f"shape {advantages.shape} for {len(of.rewards_n)} samples"
            require(advantages.shape in shapes, message)
            finite = np.isfinite(_tokens(advantages, of)).all()
            require(finite, f"rewards {of.rewards_n} get {advantages.reshape(-1)}")
        probe(slot, 4)
    if not part.sound:
        return
    with part.rule(
        "the order of samples does not matter, and its arguments stay as they are",
        "go by outcomes.group_n: members of a group need not be neighbours; work on copies, keep "
        "no state and generate no random numbers",
    ):
        of = outcomes(MIXED)
        order = np.random.default_rng(2).permutation(of.rewards_n.size)
        moved = Outcomes(of.rewards_n[order], of.lengths_n[order], of.group_n[order])
        expected = _tokens(computed(of)[order], moved)
        require(np.array_equal(of.rewards_n, outcomes(MIXED).rewards_n), "it changed outcomes")
        require(np.allclose(_tokens(computed(moved), moved), expected), "they moved apart")
    with part.rule(
        "tokens behind a sample's end do not matter",
        "multiply by outcomes.mask_nt before adding over tokens",
    ):
        clean = outcomes(MIXED)
        paid_nt = np.where(clean.mask_nt, -0.1, 0.0)
        first, second = (
            computed(replace(clean, token_rewards_nt=paid_nt, values_nt=values_nt))
            for values_nt in (np.where(clean.mask_nt, 0.2, beyond) for beyond in (0.0, 9.0))
        )
        message = "values behind a sample's end change its advantages"
        require(np.array_equal(_tokens(first, clean), _tokens(second, clean)), message)
    if isinstance(slot, Imitation) and slot.imitates:
        with part.rule(
            "an advantage that imitates is never below 0",
            "it is the weight of a likelihood: return 0 for samples that are not to be imitated",
        ):
            least = _tokens(computed(outcomes(MIXED)), outcomes(MIXED)).min()
            require(least >= 0, f"rewards 0, 0.5 and 1 get advantages from {least:.3g}")
        return
    with part.rule(
        "equal rewards that it compares get exactly 0: there is nothing to learn from them",
        "guard what such rewards leave undefined, such as a division by their std: wrap a function "
        "of one group's rewards in rlax_plugin.api.per_group, which never shows it equal ones",
    ):
        scope = _compared_with(computed)
        for reward in _EQUAL if scope else ():
            rewards = np.array(MIXED) if scope == "group" else np.full(len(MIXED), reward)
            rewards[: _SIZES[0]] = reward
            of = outcomes(rewards)
            largest = np.abs(computed(of)[of.group_n == 0]).max()
            message = f"{_SIZES[0]} rewards of {reward:.6g} get advantages up to {largest:.3g}"
            require(largest == 0, message)


def _compared_with(computed: AdvantageSlot) -> str | None:
    """Scope of the comparison of rewards, group or batch; None if they are not compared."""
    base = computed(outcomes(MIXED))
    member = np.array(MIXED)
    member[0] = 0.9
    changed = outcomes(member)
    rest_n = (changed.group_n == 0) & (changed.rewards_n == outcomes(MIXED).rewards_n)
    others = np.array(MIXED)
    others[_SIZES[0] :] = 0.25  # groups 1 and 2
    of = outcomes(others)
    first_n = of.group_n == 0
    of_groups = np.allclose(computed(of)[first_n], base[first_n], rtol=1e-12, atol=0)
    if np.array_equal(computed(changed)[rest_n], base[rest_n]):
        return None  # plain rewards, say: every sample stands alone
    return "group" if of_groups else "batch"


def _tokens(advantages: np.ndarray, of: Outcomes) -> np.ndarray:
    """The numbers that count: per token, only those up to a sample's end."""
    return advantages if advantages.ndim == 1 else np.where(of.mask_nt, advantages, 0.0)
