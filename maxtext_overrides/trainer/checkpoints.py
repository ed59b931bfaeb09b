"""The names and locations of the MaxText checkpoints of a run."""

from __future__ import annotations

from rlax_plugin.base.files.run_files import RunFiles


def checkpoints(run_url: str, updates_per_step: int) -> dict[int, str]:
    """Returns RL step -> name below ``checkpoints/``: the number of its last update, from 0."""
    names = RunFiles(run_url).names("checkpoints")
    return {(int(name) + 1) // updates_per_step: name for name in names if name.isdigit()}


def items(run_url: str, name: str) -> str:
    """Returns the path that ``load_full_state_path`` or ``load_parameters_path`` must name."""
    return RunFiles(run_url).location(f"checkpoints/{name}/items")


def holds(run_url: str, name: str) -> bool:
    """True if the checkpoint exists."""
    return RunFiles(run_url).exists(f"checkpoints/{name}/items")


def mismatch(error: ValueError) -> str:
    """Returns the first weight that differs between checkpoint and model, from MaxText's error.

    It is empty if the error is about something else.
    """
    title, *lines = str(error).splitlines()
    weights = [line.strip(" -") for line in lines if line.startswith("  - ")]
    if not title.startswith("Checkpoint does not match the model") or not weights:
        return ""
    return f"{weights[0]}" + (f" (and {len(weights) - 1} more)" if len(weights) > 1 else "")
