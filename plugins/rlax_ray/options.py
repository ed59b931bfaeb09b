"""The options of the launcher ``ray``: the cluster, and the pools of its workers."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from rlax_plugin.api import (
    Choice,
    ConfigError,
    NonNegativeInt,
    PositiveInt,
    ScalingRule,
    Seconds,
    Section,
)

KEY = "rlax.launcher"
_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
_REPLACED = {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # if it is 0, Ray listens on loopback alone
LOCAL = "local"
_OF_A_WORKER = re.compile(r"hardware|(ici|dcn)_\w+")  # keys of MaxText that a worker may set
_RESERVED = {"memory", "object_store_memory", "node:__internal_head__"}
Amount = Annotated[float, Field(ge=0, le=1e6)]


class PoolRollouts(Section):
    """Settings of ``rlax.rollouts`` that the workers of a pool have instead of the run's."""

    slots: PositiveInt | None = Field(
        default=None,
        description="number of sequences that a worker of this pool decodes at once; null: as "
        "rlax.rollouts.slots",
    )
    engine: Choice | None = Field(
        default=None,
        description="rollout engine of this pool with its options, such as {name: jetstream}; "
        "null: as rlax.rollouts.engine",
    )


class Pool(Section):
    """Workers of one kind."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")] = Field(
        default="ray", description="name of the pool, with which the names of its workers begin"
    )
    min: NonNegativeInt = Field(default=1, description="least number of workers")
    max: PositiveInt | None = Field(
        default=None, description="largest number of workers; null: as many as min"
    )
    resources: dict[str, Amount] = Field(
        default_factory=lambda: {"CPU": 1.0},
        description="resources of Ray that one worker takes: CPU, GPU, TPU, and those that your "
        "nodes declare",
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="labels that a node must have for these workers, such as "
        "{ray.io/accelerator-type: H100}",
    )
    rollouts: PoolRollouts = Field(
        default_factory=PoolRollouts, description="settings of the rollouts of these workers"
    )
    maxtext: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="keys of MaxText that these workers have instead of the run's: hardware, and "
        "those that begin with ici_ or dcn_",
    )

    @field_validator("resources")
    @classmethod
    def _known(cls, resources: dict[str, float]) -> dict[str, float]:
        if taken := sorted(_RESERVED & resources.keys()):
            raise ValueError(f"{taken[0]} is a resource that Ray gives out by itself: leave it out")
        return resources

    @field_validator("maxtext")
    @classmethod
    def _local(cls, keys: dict[str, Any]) -> dict[str, Any]:
        if others := sorted(key for key in keys if not _OF_A_WORKER.fullmatch(key)):
            reason = "must be the run's in all workers: a pool may set hardware, ici_* and dcn_*"
            raise ValueError(f"{others[0]} {reason}")
        return keys

    def check_together(self) -> None:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max = {self.max} must be at least min = {self.min}")
        if self.most < 1:
            raise ValueError("max must be at least 1: a pool with no workers can be left out")

    @property
    def most(self) -> int:
        """The largest number of workers."""
        return self.min if self.max is None else self.max


class RayConfig(Section):
    """Starts workers as actors of a Ray cluster, which starts lost ones again on other nodes."""

    address: str = Field(
        default=LOCAL,
        description="local: start a cluster on this machine and end it with the run; otherwise "
        "host:port of the head node of a cluster. This machine must be a node of it",
    )
    token_file: str = Field(
        default="",
        description="file with the authentication token of the cluster; empty: "
        "RAY_AUTH_TOKEN_PATH. Not used with address: local, which makes a token of its own",
    )
    allow_unauthenticated: bool = Field(
        default=False,
        description="true: join a cluster without token authentication, in which everybody who "
        "reaches one of its ports can execute code as its user",
    )
    pools: list[Pool] = Field(
        default_factory=lambda: [Pool()],
        min_length=1,
        max_length=100,
        description="pools of workers. Workers beyond the least numbers are added to the first "
        "pools first, and removed from the last ones first",
    )
    scale_up_s: Seconds = Field(
        default=30.0, description="workers are added after this time of too much load"
    )
    scale_down_s: Seconds = Field(
        default=300.0, description="a worker is removed after this time of too little load"
    )
    scale_waits: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1,
        description="workers are added only if the trainer waits for samples in this share of the "
        "time",
    )
    max_restarts: NonNegativeInt = Field(
        default=5,
        description="limit for restarting a worker at once that ends within 60 s of its start: the "
        "number of such restarts in a row. Then, and at once if its config or one of its files is "
        "wrong (status 2), it is tried again after pauses of 10 s to 10 minutes; the run ends if "
        "that is so for all workers and none has lived for 60 s",
    )
    start_s: Seconds = Field(
        default=180.0, description="deadline for starting, or for joining, the cluster"
    )
    stop_s: Seconds = Field(
        default=10.0, description="time between SIGTERM and SIGKILL when the run ends"
    )

    def check_together(self) -> None:
        names = [pool.name for pool in self.pools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"pools: two pools have the name {twice[0]}")
        if not any(pool.min for pool in self.pools):
            raise ValueError("pools: at least one pool needs a min of at least 1")

    @property
    def workers(self) -> int:
        """The number of workers with which a run begins."""
        return sum(pool.min for pool in self.pools)

    @property
    def rule(self) -> ScalingRule:
        """The rule by which the number of workers follows the load."""
        most = sum(pool.most for pool in self.pools)
        return ScalingRule(self.workers, most, self.scale_up_s, self.scale_down_s, self.scale_waits)

    def check(self, environ: Mapping[str, str]) -> None:
        """Checks what can be checked before a cluster is there.

        Raises:
          ConfigError: Ray is not installed, or there is no token for the cluster.
        """
        if importlib.util.find_spec("ray") is None:
            reason = (
                "needs the package ray, which is not installed: pip install '.[ray]' in a checkout"
            )
            raise ConfigError(KEY, "ray", reason)
        if self.address == LOCAL:
            return
        path = self._token(environ)
        if path and not os.access(path, os.R_OK):
            reason = "must be a file that you can read, with the cluster's token"
            raise ConfigError(f"{KEY}.token_file", path, reason)
        if not path and not self.allow_unauthenticated:
            reason = (
                f"must name the file with the token of the cluster {self.address}. A cluster "
                "without a token executes the code of everybody who reaches it, and is joined only "
                f"with {KEY}.allow_unauthenticated: true"
            )
            raise ConfigError(f"{KEY}.token_file", None, reason)

    def _token(self, environ: Mapping[str, str]) -> str:
        return self.token_file or environ.get("RAY_AUTH_TOKEN_PATH", "")

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of the driver, with the authentication of the cluster."""
        if self.address == LOCAL:  # the driver makes a token
            own = {k: v for k, v in environ.items() if not k.startswith("RAY_")}
            return own | _NO_STATISTICS | {"RAY_AUTH_MODE": "token", _LOOPBACK: "0"}
        # Others may be needed, such as those of TLS.
        own = {k: v for k, v in environ.items() if k not in _REPLACED} | _NO_STATISTICS
        if not (path := self._token(environ)):
            return own
        return own | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": os.path.abspath(path)}
