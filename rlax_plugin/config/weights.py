"""The storage of weight versions, and their way to the workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.addresses import is_address
from rlax_plugin.config.base import (
    Choice,
    DefaultPart,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Section,
)


class Weights(Section):
    """Transfer of weights from the trainer to the workers."""

    store: Annotated[Choice, DefaultPart("orbax")] = Field(
        default=Choice(name="orbax"), description="storage of weight versions"
    )
    path: PathText = Field(
        default="",
        description="directory of the weight versions, which every worker with transfer: path must "
        "be able to read; empty: <run_dir>/weights",
    )
    dtype: Literal["model", "bfloat16"] = Field(
        default="model",
        description="dtype of the published weights. model: that of the trainer's weights, "
        "MaxText's weight_dtype; bfloat16: float32 matrices are rounded before they are "
        "published, which halves their bytes, and workers generate with the rounded weights. Use "
        "it together with MaxText's dtype: bfloat16: then the trainer, too, computes with rounded "
        "weights; with float32 the log-probs of trainer and workers would differ",
    )
    keep: PositiveInt = Field(
        default=2,
        description="number of newest versions that are kept; older versions are deleted as soon "
        "as no worker uses them",
    )
    memory_mib: NonNegativeInt = Field(
        default=2048,
        description="largest version, in MiB, that the trainer also hands over in memory to "
        "workers on its own machine. They need not wait until it is on the disk, and share one "
        "copy of it; the trainer's host needs memory for it. Not used with a separate parameter "
        "server, a trainer on several hosts, or transfer: stream. 0: never",
    )
    parameter_server: str = Field(
        default="embedded",
        description="embedded: the parameter server, which tells workers which versions exist, "
        "runs in the trainer process; host:port: address of a running rlax "
        "parameter-server",
    )
    transfer: Literal["path", "stream"] = Field(
        default="path",
        description="way of the weights to a worker. path: the worker reads them from the "
        "directory in which the trainer writes them; stream: the parameter server sends the files, "
        "for workers on machines that do not see that directory. Workers of one run may differ",
    )
    stream_dir: PathText = Field(
        default="",
        description="local directory in which a worker keeps the files that it was sent, with "
        "transfer: stream; it needs room for two versions. Empty: rlax/weights under "
        "XDG_CACHE_HOME",
    )
    streams: PositiveInt = Field(
        default=8,
        description="number of workers to which the parameter server sends files at the same time; "
        "others wait for their turn",
    )

    @property
    def rounded(self) -> bool:
        """True if float32 matrices are published as bfloat16."""
        return self.dtype == "bfloat16"

    @field_validator("stream_dir")
    @classmethod
    def _local(cls, directory: str) -> str:
        if "://" in directory:
            raise ConfigError("rlax.weights.stream_dir", directory, "must be a local directory")
        return directory

    def check_together(self) -> None:
        server = self.parameter_server
        if server != "embedded" and not is_address(server):
            reason = "must be embedded, or host:port of a running rlax parameter-server"
            raise ConfigError("rlax.weights.parameter_server", server, reason)
