"""Which difference between a worker's log-probs and the published ones is rounding."""

import numpy as np
import pytest

from rlax_plugin.base.errors import WeightsError, WeightsMismatchError
from rlax_plugin.base.types import Canary, WeightVersion
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.verification import check_canary


def version(*logprobs: float, tolerance: float = 1e-4) -> WeightVersion:
    tokens = np.arange(len(logprobs) + 1, dtype=np.int32)
    canary = Canary(tokens, np.array(logprobs, np.float32), tolerance)
    return make_version(3, "/w", tensors={}, canary=canary)


@pytest.mark.parametrize(
    ("published", "apart", "right"),
    [
        (-2.0, 0.9e-4, True),
        (-2.0, 1.2e-4, False),
        (-9.0, 1.2e-4, False),  # a uniform choice of 8192 words: nothing is added up to there
        (-209.0, 1.53e-4, True),  # seen with a random model whose logits are not normalised
        (-209.0, 1.6e-3, False),  # 1e-4 * 209 / 16 = 1.3e-3
    ],
)
def test_a_difference_counts_in_proportion_to_large_log_probs(
    published: float, apart: float, right: bool
) -> None:
    one = version(-1.0, published)
    assert one.canary is not None
    found = np.array([-1.0, published + apart])
    if right:
        check_canary(one, found)
        return
    with pytest.raises(WeightsMismatchError, match="at position 1 is"):
        check_canary(one, found)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_never_right(wrong: float) -> None:
    with pytest.raises(WeightsMismatchError):
        check_canary(version(-1.0, -2.0), np.array([-1.0, wrong]))
    with pytest.raises(WeightsMismatchError):
        check_canary(version(-1.0, wrong), np.array([-1.0, wrong]))


def test_the_worst_is_told_with_what_is_allowed_there() -> None:
    told = r"position 0 is -0\.9995, but -1 was published: .* 0\.0005 nats, the tolerance 0\.0001"
    with pytest.raises(WeightsMismatchError, match=told):
        check_canary(version(-1.0, -320.0), np.array([-0.9995, -319.999]))


def test_another_number_of_log_probs_is_an_error_of_the_record() -> None:
    with pytest.raises(WeightsError, match="2 log-probs for 3 tokens"):
        check_canary(version(-1.0, -2.0), np.array([-1.0]))
