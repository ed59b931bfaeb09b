"""What a batch's arrays are: shapes with any number of axes behind the positions."""

import numpy as np
import pytest

from rlax_plugin.testing import make_arrays, make_batch
from rlax_plugin.training.objective import batches
from rlax_plugin.training.objective.arrays import ArraySpec

EXPERTS = ArraySpec(np.dtype(np.int16), (5, 2))  # of 5 layers, 2 per token


def test_axes_behind_the_positions_count_in_shape_and_bytes():
    assert EXPERTS.shape(3, 7) == (3, 7, 5, 2) and EXPERTS.bytes_per_position == 20
    flat = ArraySpec(np.dtype(np.float64))
    assert flat.shape(3, 7) == (3, 7) and flat.bytes_per_position == 8
    zeros = EXPERTS.zeros(3, 7)
    assert zeros.shape == (3, 7, 5, 2) and zeros.dtype == np.int16 and not zeros.any()


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (None, "nothing"),
        (np.zeros((3, 7, 5), np.int16), "int16[3, 7, 5]"),
        (np.zeros((3, 7, 5, 2), np.int32), "int32[3, 7, 5, 2]"),
    ],
)
def test_a_mismatch_says_what_is_there_and_what_was_expected(array, found):
    assert EXPERTS.mismatch(array, 3, 7) == f"{found}, expected int16[3, 7, 5, 2]"
    assert EXPERTS.mismatch(EXPERTS.zeros(3, 7), 3, 7) == ""


def test_a_batch_has_the_arrays_that_the_tables_declare(monkeypatch):
    monkeypatch.setitem(batches.HOST_ARRAYS, "experts", EXPERTS)
    arrays = make_arrays(make_batch(), length=9)
    assert arrays["experts"].shape == (4, 9, 5, 2) and arrays["experts"].dtype == np.int16
    assert arrays["rl_mask"].shape == (4, 9)
