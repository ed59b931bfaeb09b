"""Rows of the table of metrics for the stage ``machine``; see ``names``."""

from __future__ import annotations

from rlax_plugin.metrics.objective_rows import Row

GROUPS = {
    "trainer": "the trainer's process",
    "rewards": "the reward processes",
    "workers": "the workers",
}


_ACCELERATORS = "on GPUs and TPUs"
_ABSENT = ("trainer_memory_bytes_max", "rewards_accelerator")
"""Beginnings of rows that do not exist: the trainer is one process, rewards compute on none."""


def _rows(group: str, who: str) -> tuple[Row, ...]:
    return (
        (f"{group}_cpu", "cores", f"CPU cores in use by {who}"),
        (f"{group}_memory_bytes", "bytes", f"resident memory of {who}"),
        (
            f"{group}_memory_bytes_max",
            "bytes",
            f"resident memory of the largest of {who}",
            "if there are several",
        ),
        (
            f"{group}_accelerator_memory_bytes",
            "bytes",
            f"memory in use on all accelerators of {who}, by JAX",
            _ACCELERATORS,
        ),
        (
            f"{group}_accelerator_memory_share",
            "fraction",
            f"share in use of the memory of the fullest accelerator of {who}",
            _ACCELERATORS,
        ),
    )


MACHINE_ROWS: tuple[Row, ...] = tuple(
    row
    for group, who in GROUPS.items()
    for row in _rows(group, who)
    if not row[0].startswith(_ABSENT)
)
