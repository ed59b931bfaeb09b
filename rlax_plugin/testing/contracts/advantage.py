"""Contract of advantages: numpy, float64, over all samples of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlax_plugin.objective.advantages import AdvantageSlot, Outcomes, probe
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import Trial

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
        _check_finite(computed, outcomes(MIXED))
        alone = Outcomes(np.array([1.0, 0.0, 1.0]), np.array([2, 1, 3]), np.array([0, 1, 2]))
        _check_finite(computed, alone)  # groups of which one sample was scored
        probe(slot, 4)
    if not part.sound:
        return
    with part.rule(
        "is a pure function: called twice, it returns the same, and its arguments are untouched",
        "work on copies, keep no state and generate no random numbers",
    ):
        of = outcomes(MIXED)
        before = (of.rewards_n.copy(), of.lengths_n.copy(), of.group_n.copy())
        require(np.array_equal(computed(of), computed(of)), "two calls differ")
        after = (of.rewards_n, of.lengths_n, of.group_n)
        same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        require(same, "it changed outcomes")
    with part.rule(
        "the order of samples does not matter",
        "go by outcomes.group_n: members of a group need not be neighbours",
    ):
        of = outcomes(MIXED)
        order = np.random.default_rng(2).permutation(of.rewards_n.size)
        moved = Outcomes(of.rewards_n[order], of.lengths_n[order], of.group_n[order])
        found, expected = computed(moved), computed(of)[order]
        require(np.allclose(_tokens(found, moved), _tokens(expected, moved)), "they moved apart")
    with part.rule(
        "tokens behind a sample's end do not matter",
        "multiply by outcomes.mask_nt before adding over tokens",
    ):
        _check_mask(computed)
    _check_equal_rewards(part, computed)


def _check_finite(computed: AdvantageSlot, of: Outcomes) -> None:
    found = computed(of)
    shapes = (of.lengths_n.shape, of.mask_nt.shape)
    require(found.shape in shapes, f"shape {found.shape} for {shapes[0]} samples")
    numbers = _tokens(found, of)
    require(np.isfinite(numbers).all(), f"rewards {of.rewards_n} get {found.reshape(-1)}")


def _check_mask(computed: AdvantageSlot) -> None:
    clean = outcomes(MIXED)
    paid_nt = np.where(clean.mask_nt, -0.1, 0.0)
    found = [
        computed(
            replace(clean, token_rewards_nt=paid_nt, values_nt=np.where(clean.mask_nt, 0.2, beyond))
        )
        for beyond in (0.0, 9.0)
    ]
    require(
        np.array_equal(_tokens(found[0], clean), _tokens(found[1], clean)),
        "values behind a sample's end change its advantages",
    )


def _check_equal_rewards(part: Inspection, computed: AdvantageSlot) -> None:
    what: str | None = None
    with part.rule(
        "takes groups whose rewards are all equal",
        "guard what such rewards leave undefined: a division by their std, say",
    ):
        what = _compared_with(computed)
    if what is None:
        return
    with part.rule(
        f"a {what} of equal rewards gets exactly 0: there is nothing to learn from it",
        "wrap a function of one group's rewards in rlax_plugin.api.per_group, "
        "which never shows it equal ones; else return zeros where max == min",
    ):
        for reward in _EQUAL:
            rewards = np.array(MIXED) if what == "group" else np.full(len(MIXED), reward)
            rewards[: _SIZES[0]] = reward
            of = outcomes(rewards)
            found = computed(of)[of.group_n == 0]
            shown = np.abs(found).max()
            require(
                not found.any(),
                f"{_SIZES[0]} rewards of {reward:.6g} get advantages up to {shown:.3g}",
            )


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


def _tokens(found: np.ndarray, of: Outcomes) -> np.ndarray:
    """The numbers that count: per token, only those up to a sample's end."""
    return found if found.ndim == 1 else np.where(of.mask_nt, found, 0.0)
