"""Prompt sources ``toy_jsonl``, ``toy_hf`` and ``toy_tfds``: those without ``toy_``, for trainers
whose model has no tokenizer: they have one of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from rlax_datasets import (
    HuggingFaceConfig,
    HuggingFaceSource,
    JsonlConfig,
    JsonlSource,
    TfdsConfig,
    TfdsSource,
)

from rlax_plugin.api import BuildContext, Extension, PathText, ResolvedConfig, hookimpl


def _with_tokenizer(config: Any, context: BuildContext) -> BuildContext:
    model = {"tokenizer_path": config.tokenizer, "tokenizer_type": "huggingface"}
    return replace(context, config=ResolvedConfig(context.section, model))


class ToyJsonlConfig(JsonlConfig):
    tokenizer: PathText


class ToyJsonl(JsonlSource):
    @classmethod
    def build(cls, config: ToyJsonlConfig, context: BuildContext) -> Self:
        return super().build(config, _with_tokenizer(config, context))


class ToyHfConfig(HuggingFaceConfig):
    tokenizer: PathText


class ToyHf(HuggingFaceSource):
    @classmethod
    def build(cls, config: ToyHfConfig, context: BuildContext) -> Self:
        return super().build(config, _with_tokenizer(config, context))


class ToyTfdsConfig(TfdsConfig):
    tokenizer: PathText


class ToyTfds(TfdsSource):
    @classmethod
    def build(cls, config: ToyTfdsConfig, context: BuildContext) -> Self:
        return super().build(config, _with_tokenizer(config, context))


SOURCES: dict[str, tuple[type[Any], type[Any]]] = {
    "toy_jsonl": (ToyJsonlConfig, ToyJsonl),
    "toy_hf": (ToyHfConfig, ToyHf),
    "toy_tfds": (ToyTfdsConfig, ToyTfds),
}


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {
        name: Extension(config_class, source.build, needs_model=True)
        for name, (config_class, source) in SOURCES.items()
    }
