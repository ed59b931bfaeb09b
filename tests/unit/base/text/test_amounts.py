"""Seconds and bytes are short enough to read, in one unit wherever they stand."""

import pytest

from rlax_plugin.base.text.amounts import in_bytes, in_seconds


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1000, "1,000 B"),
        (1024, "1 KiB"),
        (1023.9 * 2**20, "1,024 MiB"),
        (32_121_044_992, "29.9 GiB"),
        (2**50, "1,024 TiB"),
    ],
)
def test_bytes_have_a_binary_unit(count: float, expected: str) -> None:
    assert in_bytes(count) == expected


def test_seconds_have_two_digits_or_are_whole() -> None:
    assert [in_seconds(s) for s in (1638.4, 10, 9.96, 0.251)] == [
        "1,638 s",
        "10 s",
        "10 s",
        "0.25 s",
    ]
