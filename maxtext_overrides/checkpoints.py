"""MaxText's checkpoints of a run: how it names them, and where they are."""

from __future__ import annotations

from rlax_plugin.records.files import RunFiles


def checkpoints(run_url: str, updates_per_step: int) -> dict[int, str]:
    """RL step -> name below ``checkpoints/``, which is that of its last update, from 0."""
    names = RunFiles(run_url).names("checkpoints")
    return {(int(name) + 1) // updates_per_step: name for name in names if name.isdigit()}


def items(run_url: str, name: str) -> str:
    """Where a checkpoint's state is, for ``load_full_state_path``."""
    return RunFiles(run_url).location(f"checkpoints/{name}/items")
