"""A run's directory: whose it is, whether it is done, and what is shown of it at the end."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from rlax_plugin.controller.dashboard import before_after_table
from rlax_plugin.controller.evaluation import recorded
from rlax_plugin.errors import ConfigError


def run_directory(maxtext: dict[str, Any]) -> Path:
    """Where MaxText keeps the run, and so where everything of the run is kept.

    Raises:
      ConfigError: a key is missing.
    """
    for key in ("run_name", "base_output_directory", "steps"):
        if not maxtext.get(key):
            raise ConfigError(key, maxtext.get(key), "must be set in the config or as key=value")
    return Path(str(maxtext["base_output_directory"])) / str(maxtext["run_name"])


def console(out: IO[str]) -> Console:
    """Paths and messages are printed as they are, in one line each where nobody watches."""
    return Console(file=out, markup=False, highlight=False, soft_wrap=not out.isatty())


@contextmanager
def quiet(log_path: Path) -> Iterator[Console]:
    """Sends what libraries print to a file; yields a console on the real standard output."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    log_file = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
    real = os.fdopen(os.dup(out), "w", buffering=1)
    try:
        yield console(real)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (out, err, log_file):
            os.close(descriptor)
        real.close()


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """One process per run directory; the lock ends with the process, however it ends."""
    lock: IO[str] = (run_dir / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError("run_name", run_dir.name, "another process is running it") from None
    try:
        yield
    finally:
        lock.close()


def _holds_results(run_dir: Path) -> bool:
    paths = (run_dir / name for name in ("checkpoints", "evaluation", "warm_start"))
    return any(path.is_dir() and any(path.iterdir()) for path in paths)


def check_same_run(run_dir: Path, digest: str) -> None:
    """Refuses to continue another run.

    Raises:
      ConfigError: the directory holds results of another config.
    """
    record = run_dir / "config.json"
    if not record.exists() or not _holds_results(run_dir):
        return  # a run that failed at once may be started again with its config put right
    if (known := json.loads(record.read_text())["config_hash"]) != digest:
        raise ConfigError(
            "run_name",
            run_dir.name,
            f"{run_dir} holds a run of another config ({known}, this one is {digest}); choose "
            "another run_name or remove that directory",
        )


def finished(run_dir: Path, last_step: int) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do, None if there is something."""
    path = run_dir / "summary.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    return document if document.get("complete") and document["steps"] >= last_step else None


def train_command(argv: Sequence[str]) -> str:
    """What to type to continue."""
    return shlex.join(("rlax", "train", *argv))


def print_results(out: Console, run_dir: Path, argv: Sequence[str], steps: int) -> None:
    """What a run of that many steps has left behind, and how to go on."""
    before, after = recorded(run_dir, "before"), recorded(run_dir, "after", version=steps)
    if before and after:
        out.print(before_after_table(before, after))
    elif before:
        out.print("the evaluation after training was interrupted")
    for what, path in (
        ("summary", "summary.json"),
        ("metrics per step", "metrics.jsonl"),
        ("rollouts (Parquet)", "rollouts/"),
        ("checkpoints", "checkpoints/"),
        ("logs", "logs/"),
        ("TensorBoard", "tensorboard/"),
    ):
        if (run_dir / path).exists():
            out.print(f"{what:20} {run_dir / path}")
    longer = [word for word in argv if not word.startswith("steps=")] + [f"steps={2 * steps}"]
    out.print(f"go on training:      {train_command(longer)}")
    if (run_dir / "tensorboard").exists():
        out.print(f"look at the curves:  tensorboard --logdir {run_dir}")
