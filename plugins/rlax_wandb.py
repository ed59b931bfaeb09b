"""The tracker ``wandb``: a Weights & Biases run, online or offline."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlax_plugin.api import (
    BackgroundTracker,
    BuildContext,
    Extension,
    Sink,
    TrackedRun,
    TrackerConfig,
    hookimpl,
    require,
)


class WandbConfig(TrackerConfig):
    """Logs metrics and the config to Weights & Biases.

    The API key is not an option: set WANDB_API_KEY, or log in once with ``wandb login``.
    """

    project: str = Field(default="rlax", description="W&B project")
    entity: str = Field(default="", description="W&B user or team; empty: the account's default")
    group: str = Field(
        default="", description="W&B group; runs with the same group are shown together"
    )
    tags: tuple[str, ...] = Field(default=(), description="tags of the W&B run")
    mode: Literal["online", "offline", "disabled"] = Field(
        default="online",
        description="online: upload; offline: write to <run_dir>/wandb, to be uploaded later with "
        "wandb sync; disabled: write nothing",
    )


class WandbRun(Sink):
    """Writes through wandb, whose own process uploads."""

    def __init__(self, config: WandbConfig, run: TrackedRun) -> None:
        import wandb

        where = f"{config.entity}/{config.project}".strip("/")
        local = Path(run.files.location()) if run.files.is_local else run.directory
        self._records = local / "metrics.jsonl"
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity or None,
            name=run.name,
            group=config.group or None,
            tags=config.tags,
            config=run.config,
            id=run.run_id("wandb", where, lambda: secrets.token_hex(4)),
            resume="allow",
            mode=config.mode,
            dir=run.directory,
            reinit="create_new",  # leaves alone what a user's plug-in does with wandb
            settings=wandb.Settings(
                console="off", finish_timeout=config.flush_s, finish_timeout_raises=True
            ),
        )
        online = config.mode == "online"
        self.last_step = self._run.starting_step - 1 if online else 0
        self._whole = online  # whether W&B has every step before the next one

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._whole:
            self._log_earlier(step)
            self._whole = True
        self._run.log(dict(metrics), step=step)

    def _log_earlier(self, before: int) -> None:
        """Logs the metrics of earlier processes, which W&B may have lost if they were killed."""
        if before == 1 or not self._records.exists():
            return
        for line in self._records.read_text().splitlines():
            metrics = json.loads(line)
            step = metrics.pop("step")
            if step >= before:
                break  # a line that is being written is behind it
            self._run.log(metrics, step=step)

    def close(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


def _check(config: WandbConfig, context: BuildContext) -> None:
    require("wandb", "wandb")


@hookimpl
def rlax_register_tracker() -> dict[str, Extension]:
    def build(config: WandbConfig, context: BuildContext) -> BackgroundTracker:
        _check(config, context)
        return BackgroundTracker(
            "wandb", lambda run: WandbRun(config, run), context, config.flush_s
        )

    return {"wandb": Extension(WandbConfig, build, check=_check)}
