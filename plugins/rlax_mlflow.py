"""The tracker ``mlflow``: an MLflow run, by default in a database file in the run's directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

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

LAST_STEP = "rlax.last_step"  # tag of an MLflow run
_PARAMS_AT_ONCE = 100  # MLflow's limit of one request
_PARAM_CHARACTERS = 6000  # likewise, of a value
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]", re.ASCII)  # in the name of a metric


class MlflowConfig(TrackerConfig):
    """Logs metrics and the config to MLflow."""

    tracking_uri: str = Field(
        default="",
        description="tracking URI of MLflow, such as http://host:5000 or sqlite:////path/to.db; "
        "empty: <run_dir>/mlflow.db",
    )
    experiment: str = Field(
        default="rlax", description="MLflow experiment; it is created if it does not exist"
    )
    tags: dict[str, str] = Field(default_factory=dict, description="tags of the MLflow run")


class MlflowRun(Sink):
    """Writes through ``MlflowClient``, one request per step."""

    def __init__(self, config: MlflowConfig, run: TrackedRun) -> None:
        # On a closed network MLflow must not send telemetry.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow.entities
        from mlflow.tracking import MlflowClient

        self._entities = mlflow.entities
        directory = run.directory.resolve()
        own = not config.tracking_uri
        self._client: Any = MlflowClient(config.tracking_uri or f"sqlite:///{directory}/mlflow.db")
        artifacts = (directory / "mlflow").as_uri() if own else None

        def create() -> str:
            found = self._client.get_experiment_by_name(config.experiment)
            experiment_id = (
                found.experiment_id
                if found
                else self._client.create_experiment(config.experiment, artifacts)
            )
            created = self._client.create_run(experiment_id, run_name=run.name, tags=config.tags)
            self._log_params(created.info.run_id, run.settings())
            return created.info.run_id

        where = f"{config.tracking_uri} {config.experiment}".strip()
        self._id = run.run_id("mlflow", where, create)
        tags = self._client.get_run(self._id).data.tags
        self.last_step = int(tags.get(LAST_STEP, 0))
        self._client.update_run(self._id, status="RUNNING")

    def _log_params(self, run_id: str, settings: Mapping[str, Any]) -> None:
        params = [
            self._entities.Param(key, str(value)[:_PARAM_CHARACTERS])
            for key, value in settings.items()
        ]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(run_id, params=params[start : start + _PARAMS_AT_ONCE])

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        self._client.log_batch(
            self._id,
            metrics=[
                self._entities.Metric(_NOT_ALLOWED.sub("_", name), float(value), now_ms, step)
                for name, value in metrics.items()
            ],
            tags=[self._entities.RunTag(LAST_STEP, str(step))],
        )

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")


def _check(config: MlflowConfig, context: BuildContext) -> None:
    remote = config.tracking_uri.startswith(("http://", "https://"))
    require("mlflow", "mlflow", *(() if remote else ("sqlalchemy", "alembic")))


@hookimpl
def rlax_register_tracker() -> dict[str, Extension]:
    def build(config: MlflowConfig, context: BuildContext) -> BackgroundTracker:
        _check(config, context)
        return BackgroundTracker(
            "mlflow", lambda run: MlflowRun(config, run), context, config.flush_s
        )

    return {"mlflow": Extension(MlflowConfig, build, check=_check)}
