"""The pass-rate table, by numbers worked out by hand."""

import numpy as np
import pytest

from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.testing import make_rates


def test_samples_count_half_after_a_half_life_of_policy_versions() -> None:
    table = PassRateTable(3, half_life=10)
    table.observe(1, 4, 0, version=5)
    assert np.array(table.counts([1])).tolist() == [[4.0], [0.0]]
    table.observe(1, 0, 4, version=15)
    # 4 passed ten versions ago: 2 of 6.
    assert np.array(table.counts([1])).tolist() == [[2.0], [4.0]]
    assert table.rate(1) == pytest.approx(1 / 3)
    # The policy goes on with other prompts: what is known of this one fades, its rate stays.
    table.observe(0, 1, 1, version=25)
    assert np.array(table.counts([1])).tolist() == [[1.0], [2.0]]
    assert table.rate(1) == pytest.approx(1 / 3) and table.version == 25


def test_the_posterior_goes_back_to_the_prior() -> None:
    table = PassRateTable(2, half_life=1, prior_samples=4, prior_rate=0.25)
    assert np.array(table.posterior()).tolist() == [[1.0, 1.0], [3.0, 3.0]]
    table.observe(0, 6, 2, version=0)
    assert np.array(table.posterior([0])).tolist() == [[7.0], [5.0]]
    table.observe(1, 1, 0, version=100)
    assert np.array(table.posterior([0])) == pytest.approx(np.array([[1.0], [3.0]]), abs=1e-12)


def test_groups_count_alike_in_whatever_order_they_come() -> None:
    groups = [(3, 1, 0), (0, 4, 8), (2, 2, 3), (1, 3, 20), (4, 0, 12)]
    found = []
    for order in (groups, groups[::-1], groups[2:] + groups[:2]):
        table = PassRateTable(1, half_life=7)
        for passed, failed, version in order:
            table.observe(0, passed, failed, version)
        assert table.version == 20
        found.append(np.array(table.counts([0])))
    kept = [0.5 ** ((20 - version) / 7) for _, _, version in groups]
    expected = [sum(k * g[i] for k, g in zip(kept, groups, strict=True)) for i in (0, 1)]
    for one in found:
        assert one[:, 0] == pytest.approx(np.array(expected), rel=1e-6)


def test_errored_samples_never_count() -> None:
    table = PassRateTable(1, 8)
    table.observe(0, 0, 0, version=9)
    assert table.rate(0) is None and not table.measured([0])[0] and table.version == 0
    assert np.isnan(table.mean([0])[0])


def test_streaks_count_groups_of_one_outcome() -> None:
    table = PassRateTable(1, 8)
    seen = []
    for passed, failed in ((2, 0), (3, 0), (0, 0), (0, 2), (0, 1), (1, 1), (0, 4)):
        table.observe(0, passed, failed, version=0)
        seen.append(int(table.streaks([0])[0]))
    assert seen == [1, 2, 2, -1, -2, 0, -1]


def test_answers_have_the_shape_of_what_is_asked() -> None:
    table = make_rates(5, {2: (1, 3), 4: (4, 0)}, version=6)
    asked = np.array([[2, 4, 0], [4, 2, 2]])
    passed, failed = table.counts(asked)
    assert passed.tolist() == [[1, 4, 0], [4, 1, 1]] and failed.tolist() == [[3, 0, 0], [0, 3, 3]]
    assert table.measured().tolist() == [False, False, True, False, True]
    assert table.version == 6 and len(table) == 5


def test_columns_are_a_copy_and_bring_everything_back() -> None:
    table = make_rates(4, {0: (1, 1), 3: (0, 2)}, version=2, half_life=5)
    saved = table.columns()
    table.observe(0, 8, 0, version=9)
    again = PassRateTable(4, 5)
    again.restore(saved)
    assert again.version == 2 and np.array(again.counts([0])).tolist() == [[1.0], [1.0]]
    again.observe(0, 8, 0, version=9)
    for one, other in zip(again.posterior(), table.posterior(), strict=True):
        assert one.tolist() == other.tolist()  # bit for bit
    assert again.streaks().tolist() == table.streaks().tolist()
    assert again.outcomes == table.outcomes == (1, 1, 1)  # all passed, none, both
    with pytest.raises(ValueError, match="4 rows for 5 prompts"):
        PassRateTable(5, 5).restore(saved)


def test_a_prior_counts_as_of_the_first_version() -> None:
    table = PassRateTable(3, half_life=10)
    table.begin_with(np.array([2.0, 0.0, 0.0]), np.array([6.0, 0.0, 1.0]))
    assert table.measured().tolist() == [True, False, True] and table.rate(0) == 0.25
    assert table.streaks().tolist() == [0, 0, 0]
    table.observe(0, 4, 0, version=10)
    assert np.array(table.counts([0])).tolist() == [[5.0], [3.0]]
