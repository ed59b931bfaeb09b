"""Formats amounts for people. This module imports nothing of the project."""

from __future__ import annotations


def in_seconds(seconds: float) -> str:
    """Returns a text such as 1,638 s or 0.25 s."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def in_bytes(count: float) -> str:
    """Returns a size in binary units, such as 29.9 GiB or 1,000 B."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return _three_digits(count, unit)
        count /= 1024
    return _three_digits(count, "TiB")


def _three_digits(count: float, unit: str) -> str:
    return f"{count:,.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
