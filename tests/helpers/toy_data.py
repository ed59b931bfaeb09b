"""Prompt source ``toy_jsonl``: ``jsonl`` with a tokenizer of its own, as toy models have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from rlax_datasets import JsonlConfig, JsonlSource

from rlax_plugin.api import BuildContext, Extension, PathText, ResolvedConfig, hookimpl


class ToyJsonlConfig(JsonlConfig):
    tokenizer: PathText


class ToyJsonl(JsonlSource):
    @classmethod
    def build(cls, config: ToyJsonlConfig, context: BuildContext) -> Self:
        model = {"tokenizer_path": config.tokenizer, "tokenizer_type": "huggingface"}
        context = replace(context, config=ResolvedConfig(context.section, model))
        return super().build(config, context)


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"toy_jsonl": Extension(ToyJsonlConfig, ToyJsonl.build, needs_model=True)}
