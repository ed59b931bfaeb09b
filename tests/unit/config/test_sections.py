"""``Section``: checks of options together."""

import pytest
from pydantic import ValidationError

from rlax_plugin.config import Section


class Range(Section):
    low: int = 0
    high: int = 1

    def check_together(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not exceed high")


class EvenRange(Range):
    def check_together(self) -> None:
        if (self.low + self.high) % 2:
            raise ValueError("their sum must be even")


@pytest.mark.parametrize(
    ("low", "high", "reason"), [(3, 1, "low must not exceed high"), (0, 1, "sum must be even")]
)
def test_a_derived_class_keeps_the_checks_of_its_base(low: int, high: int, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        EvenRange(low=low, high=high)
    assert EvenRange(low=1, high=3).high == 3
