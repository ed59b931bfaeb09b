"""The tracker ``jsonl``: a line of strict JSON per step, for programs that follow runs.

An evaluation that ends after the last step is a further line of that step.

The run's own ``metrics.jsonl`` is cut back when a run is continued, and covers one run only. This
file only grows, every line has a time and a run, and several runs may share one file.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from rlax_plugin.api import (
    BackgroundTracker,
    BuildContext,
    Extension,
    PathText,
    Sink,
    TrackedRun,
    TrackerConfig,
    check_file_writable,
    hookimpl,
)


class JsonlConfig(TrackerConfig):
    """Appends one line of JSON per step to a file, which several runs may share."""

    path: PathText = Field(
        default="tracker.jsonl",
        min_length=1,
        description="path of the file, absolute or relative to the run's directory; several runs "
        "may share one file",
    )


class JsonlFile(Sink):
    """Appends ``{"time", "run", "run_id", "step", <metrics>}``; NaN and infinities are null."""

    def __init__(self, config: JsonlConfig, run: TrackedRun) -> None:
        path = run.directory / config.path
        self._run = run.name
        self._id = run.run_id("jsonl", config.path, lambda: secrets.token_hex(4))
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_bytes() if path.exists() else b""
        self.last_step = self._last_step(known)
        # Unbuffered: a line is one write, whole even if several runs write at once.
        self._file = path.open("ab", buffering=0)
        if known and not known.endswith(b"\n"):  # an earlier process was killed within a line
            self._file.write(b"\n")

    def _last_step(self, known: bytes) -> int:
        steps = [0]
        for line in known.splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # part of a line
            if entry["run_id"] == self._id:
                steps.append(entry["step"])
        return max(steps)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": self._run,
            "run_id": self._id,
            "step": step,
        }
        finite = {k: float(v) if math.isfinite(v) else None for k, v in metrics.items()}
        self._file.write(json.dumps(line | finite, allow_nan=False).encode() + b"\n")

    def close(self, complete: bool) -> None:
        self._file.close()


def _check(config: JsonlConfig, context: BuildContext) -> None:
    """Checks that a file outside of the run's directory can be written."""
    if Path(config.path).is_absolute():
        check_file_writable("rlax.trackers", config.path, context.section.deadlines.rpc_s)


@hookimpl
def rlax_register_tracker() -> dict[str, Extension]:
    def build(config: JsonlConfig, context: BuildContext) -> BackgroundTracker:
        _check(config, context)
        return BackgroundTracker(
            "jsonl", lambda run: JsonlFile(config, run), context, config.flush_s
        )

    return {"jsonl": Extension(JsonlConfig, build, check=_check)}
