"""Tracker ``wandb``: a Weights & Biases run, online or offline."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlax_plugin import BuildContext, Extension, hookimpl
from rlax_plugin.tracking import BackgroundTracker, Sink, TrackedRun, TrackerConfig, require


class WandbConfig(TrackerConfig):
    """Options of tracker ``wandb``. The API key is W&B's own affair: WANDB_API_KEY, wandb login."""

    project: str = Field(default="rlax", description="W&B project")
    entity: str = Field(default="", description="user or team; empty: the account's default")
    run_name: str = Field(default="", description="shown in W&B; empty: MaxText's run_name")
    group: str = Field(default="", description="W&B group, such as the runs of one experiment")
    tags: tuple[str, ...] = Field(default=(), description="of the W&B run")
    mode: Literal["online", "offline", "disabled"] = Field(
        default="online",
        description="offline: kept below <run_dir>/wandb, for wandb sync; disabled: nothing",
    )


class WandbRun(Sink):
    """Writes through wandb, whose own process uploads."""

    def __init__(self, config: WandbConfig, run: TrackedRun) -> None:
        import wandb

        where = f"{config.entity}/{config.project}".strip("/")
        # W&B itself cannot tell where an offline run stopped.
        self._progress: Path = run.directory / "wandb" / "last_step"
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity or None,
            name=config.run_name or run.name,
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
        self.last_step = self._run.starting_step - 1 if config.mode == "online" else self._known()
        self._progress.parent.mkdir(parents=True, exist_ok=True)
        self._disabled = config.mode == "disabled"

    def _known(self) -> int:
        return int(self._progress.read_text()) if self._progress.exists() else 0

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)
        if not self._disabled:
            self._progress.write_text(str(step))

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
