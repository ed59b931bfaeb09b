"""Options of the rollout engine ``vllm``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.api import Section

TESTED = ("0.32.0",)
"""Versions of vLLM with which this plug-in was run."""

OWN = (
    *("model", "served-model-name", "load-format", "dtype", "max-model-len", "max-num-seqs"),
    *("kv-cache-memory-bytes", "generation-config", "logprobs-mode", "worker-extension-cls"),
    *("seed", "skip-tokenizer-init", "enable-scale-out", "disable-log-stats"),
    *("disable-uvicorn-access-log", "uds", "host", "port"),
)
"""Names of the server's arguments that are this plug-in's."""

Argument = bool | int | float | str


class VllmConfig(Section):
    """Generates with vLLM, which runs in a process and a Python environment of its own.

    Set either ``python`` or ``url``.
    """

    python: str = Field(
        "",
        description="path of the Python that has vLLM; the worker starts vLLM's server with it, "
        "on sockets that only its user reaches, and ends it",
    )
    url: str = Field(
        "",
        description="a server that runs already: unix:PATH, or http://127.0.0.1:PORT, whose "
        "routes for weights are then open to every user of the machine",
    )
    dtype: Literal["", "float32", "bfloat16", "float16"] = Field(
        "", description="dtype that vLLM computes in; empty: MaxText's dtype"
    )
    cache_bytes: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="memory of the key-value cache, per device; null: enough for all "
        "rlax.rollouts.slots at their full length",
    )
    arguments: dict[str, Argument] = Field(
        {},
        description="further arguments of vLLM's server, such as tensor-parallel-size: 2; false "
        "for NAME is --no-NAME",
    )
