"""Prompt sources for data sets: files, libraries of data sets, generated tasks, and mixtures."""

from __future__ import annotations

from typing import Any

from rlax_datasets import mixture, reasoning
from rlax_datasets.files import JsonlConfig, JsonlSource, ParquetConfig, ParquetSource
from rlax_datasets.hugging_face import HuggingFaceConfig, HuggingFaceSource
from rlax_datasets.mixture import Mixture, MixtureConfig
from rlax_datasets.reasoning import ReasoningGymConfig, ReasoningGymSource
from rlax_datasets.tfds import TfdsConfig, TfdsSource
from rlax_plugin.api import BuildContext, Extension, hookimpl

__all__ = [
    "HuggingFaceConfig",
    "HuggingFaceSource",
    "JsonlConfig",
    "JsonlSource",
    "Mixture",
    "MixtureConfig",
    "ParquetConfig",
    "ParquetSource",
    "ReasoningGymConfig",
    "ReasoningGymSource",
    "TfdsConfig",
    "TfdsSource",
]


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    def check_local(config: Any, context: BuildContext) -> None:
        config.check_local()

    files = {"needs_model": True, "check_start": check_local}
    return {
        "jsonl": Extension(JsonlConfig, JsonlSource.build, **files),
        "parquet": Extension(ParquetConfig, ParquetSource.build, **files),
        "hf": Extension(HuggingFaceConfig, HuggingFaceSource.build, **files),
        "tfds": Extension(TfdsConfig, TfdsSource.build, **files),
        "reasoning_gym": Extension(
            ReasoningGymConfig,
            ReasoningGymSource.build,
            check_start=reasoning.check_start,
            needs_model=True,
        ),
        "mixture": Extension(
            MixtureConfig, Mixture.build, check_start=mixture.check_start, needs_model=True
        ),
    }
