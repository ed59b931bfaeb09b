"""Advantages over whole batches, with numbers worked out by hand."""

import numpy as np
import pytest
from scored_groups import scored_group as group

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import TrainBatch
from rlax_plugin.config import Overlong
from rlax_plugin.training.objective.advantages import (
    Outcomes,
    of_batch,
    of_groups,
    per_group,
    shaped,
)
from rlax_plugin.training.objective.batches import build_arrays

GROUPS = [group(5, (1, 1.0), (2, 0.0), (3, None)), group(9, (2, 4.0), (1, 3.0), (1, 2.0))]


def centred(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
    return rewards_g - rewards_g.mean()


def batch_centred(outcomes: Outcomes) -> np.ndarray:
    return outcomes.rewards_n - outcomes.rewards_n.mean()


def test_a_groups_advantages_come_from_its_own_scored_samples() -> None:
    seen = []

    def slot(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
        seen.append((rewards_g.tolist(), lengths_g.tolist()))
        return centred(rewards_g, lengths_g)

    found = of_groups(per_group(slot), GROUPS)
    assert seen == [([1.0, 0.0], [1, 2]), ([4.0, 3.0, 2.0], [2, 1, 1])]
    # Mean 0.5; the sample without a reward has none. Mean 3.
    assert [g.tolist() for g in found] == [[0.5, -0.5, 0.0], [1.0, 0.0, -1.0]]
    assert all(g.dtype == np.float64 for g in found)


def test_a_slot_may_look_at_the_whole_batch() -> None:
    # (1 + 0 + 4 + 3 + 2) / 5 = 2: the failed sample is not among them.
    found = of_groups(batch_centred, GROUPS)
    assert [g.tolist() for g in found] == [[-1.0, -2.0, 0.0], [2.0, 1.0, 0.0]]
    (alone,) = of_groups(batch_centred, GROUPS[1:])
    assert alone.tolist() == [1.0, 0.0, -1.0]


@pytest.mark.parametrize(("reward", "size"), [(0.1, 3), (0.7, 8), (1e300, 2)])
def test_equal_rewards_have_advantages_of_exactly_0(reward: float, size: int) -> None:
    # The mean of three times 0.1 is 0.10000000000000002, and its quotient by the std is -1.
    def normalised(rewards_g: np.ndarray, lengths_g: np.ndarray) -> np.ndarray:
        return centred(rewards_g, lengths_g) / rewards_g.std()

    (found,) = of_groups(per_group(normalised), [group(0, *[(1, reward)] * size)])
    assert found.tolist() == [0.0] * size


def test_a_slot_may_answer_per_token_what_is_one_number_per_sample() -> None:
    found = of_groups(lambda o: o.rewards_n[:, None] * o.mask_nt, GROUPS)  # 0 behind the end
    assert [g.tolist() for g in found] == [[1.0, 0.0, 0.0], [4.0, 3.0, 2.0]]


def test_advantages_without_any_reward_are_0() -> None:
    (found,) = of_groups(batch_centred, [group(0, (1, None), (2, None))])
    assert found.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (lambda o: np.zeros(3), r"expected finite numbers, \[5\] or \[5, 2\]"),
        (lambda o: o.rewards_n / np.zeros(5), "expected finite numbers"),
        (lambda o: np.arange(10.0).reshape(5, 2), "different advantages"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* encountered in divide")
def test_what_no_advantage_can_be_is_rejected(slot, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        of_groups(slot, GROUPS)


# --- token rewards and values --------------------------------------------------------------------


def laid_out(sequences_per_row: int = 1) -> dict[str, np.ndarray]:
    return arrays_of(of_groups(batch_centred, GROUPS), sequences_per_row)


def arrays_of(
    advantages: tuple[np.ndarray, ...], sequences_per_row: int = 1
) -> dict[str, np.ndarray]:
    batch = TrainBatch(1, tuple(GROUPS), advantages)
    rows = 6 if sequences_per_row == 1 else 3
    return build_arrays(batch, rows=rows, length=8, sequences_per_row=sequences_per_row)


@pytest.mark.parametrize("sequences_per_row", [1, 3])
def test_a_laid_out_batch_has_the_same_advantages(sequences_per_row: int) -> None:
    arrays = laid_out(sequences_per_row)
    for slot in (batch_centred, per_group(centred)):
        wanted = arrays_of(of_groups(slot, GROUPS), sequences_per_row)
        np.testing.assert_array_equal(of_batch(slot, arrays), wanted["rl_advantages"])


def test_token_rewards_are_added_up_for_slots_that_see_samples() -> None:
    arrays = laid_out()
    paid_bt = np.full(arrays["rl_mask"].shape, np.nan)  # nothing outside of completions is read
    paid_bt[0, 1] = 0.5  # group 5: 1 token, 2 tokens, then one that failed
    paid_bt[1, 1:3] = [0.25, -0.75]
    paid_bt[3, 1:3] = [0.0, 0.0]
    paid_bt[4, 1] = 1.0
    paid_bt[5, 1] = 2.0
    found_bt = of_batch(per_group(centred), arrays, token_rewards_bt=paid_bt)
    wanted_bt = np.zeros(paid_bt.shape)
    # Group 5: 1.5 and -0.5, mean 0.5. Group 9: 4, 4 and 4, all equal.
    wanted_bt[0, 1], wanted_bt[1, 1:3] = 1.0, -1.0
    np.testing.assert_array_equal(found_bt, wanted_bt)


def test_a_slot_may_answer_per_token_and_sees_values() -> None:
    arrays = laid_out(sequences_per_row=3)
    values_bt = np.arange(24.0).reshape(3, 8)
    seen: list[Outcomes] = []

    def slot(outcomes: Outcomes) -> np.ndarray:
        seen.append(outcomes)
        return outcomes.rewards_n[:, None] - outcomes.values_nt

    found_bt = of_batch(slot, arrays, values_bt=values_bt)
    (outcomes,) = seen
    completion_bt = arrays["rl_group"] > 0
    np.testing.assert_array_equal(
        found_bt, np.where(completion_bt, arrays["rl_rewards"] - values_bt, 0.0)
    )
    # Positions: 2 3 4 of group 5, the last one without a reward, and 3 2 2 of group 9. Row 0 holds
    # 4 and 3 of them, row 1 3, 2 and 2, row 2 2. A sample's completion is at its end. They are seen
    # in the order of the batch, wherever they lie.
    assert outcomes.rewards_n.tolist() == [1.0, 0.0, 4.0, 3.0, 2.0]
    assert outcomes.lengths_n.tolist() == [1, 2, 2, 1, 1]
    assert outcomes.group_n.tolist() == [1, 1, 2, 2, 2]
    assert outcomes.values_nt.tolist() == [[12, 0], [5, 6], [9, 10], [14, 0], [17, 0]]
    assert outcomes.mask_nt.sum(axis=1).tolist() == [1, 2, 2, 1, 1]


# --- shaping -------------------------------------------------------------------------------------


def test_overlong_samples_are_punished_along_the_buffer() -> None:
    rewards_n, lengths_n = np.ones(5), np.array([1, 8, 9, 10, 12])
    off = shaped(rewards_n, lengths_n, Overlong(), max_new_tokens=10)
    assert off.tolist() == [1.0] * 5
    # L_max 10, L_c 10 // 5 = 2: nothing up to 8, half of it at 9, all of it from 10 on.
    soft = shaped(rewards_n, lengths_n, Overlong(penalty=1.0), max_new_tokens=10)
    assert soft.tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]
    given = Overlong(penalty=0.5, buffer_tokens=4, max_tokens=12)
    # (length - 8) / 4 of 0.5.
    assert shaped(rewards_n, lengths_n, given, 99).tolist() == [1.0, 1.0, 0.875, 0.75, 0.5]
    # A fifth of 3 tokens is less than one: the buffer is one token.
    short = shaped(np.zeros(3), np.array([1, 2, 3]), Overlong(penalty=2.0), max_new_tokens=3)
    assert short.tolist() == [0.0, 0.0, -2.0]


def test_members_of_a_group_need_not_be_neighbours() -> None:
    outcomes = Outcomes(np.zeros(6), np.ones(6, int), np.array([7, 2, 7, 0, 2, 7]))
    assert [members.tolist() for members in outcomes.members] == [[3], [1, 4], [0, 2, 5]]
    assert Outcomes(np.zeros(0), np.zeros(0, int), np.zeros(0, int)).members == []
