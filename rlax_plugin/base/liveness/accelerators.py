"""The memory of the accelerators that this process computes on, as JAX knows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

IN_USE, FULLEST = "accelerator_memory_bytes", "accelerator_memory_share"
"""Figures: bytes in use on all devices together, and the share of the fullest device in use."""


def accelerator_figures() -> dict[str, float]:
    """Returns the figures of this process's accelerators; none without any, or before JAX has any.

    Only reads: JAX is neither imported nor initialized here, because this runs in a thread of its
    own while a start may still choose the devices.
    """
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    initialized = getattr(bridge, "backends_are_initialized", None)
    if initialized is None or not initialized():
        return {}
    with suppress(RuntimeError):  # of JAX, on a platform that does not tell
        return figures_of(sys.modules["jax"].local_devices())
    return {}


def figures_of(devices: Sequence[Any]) -> dict[str, float]:
    """Returns the figures of JAX devices; a processor has no memory of its own, and so none."""
    stats = [found for one in devices if (found := one.memory_stats())]
    used = [float(one["bytes_in_use"]) for one in stats if "bytes_in_use" in one]
    if not used:
        return {}
    shares = [one.get("bytes_in_use", 0) / one["bytes_limit"] for one in stats if _limited(one)]
    return {IN_USE: sum(used), **({FULLEST: max(shares)} if shares else {})}


def _limited(stats: dict[str, int]) -> bool:
    return stats.get("bytes_limit", 0) > 0
