"""Prompt source ``toy_jsonl``: ``jsonl`` with a tokenizer of its own, for trainers without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from rlax_datasets import JsonlConfig, JsonlSource

from rlax_plugin.api import BuildContext, Extension, PathText, ResolvedConfig, hookimpl


class ToyConfig(JsonlConfig):
    tokenizer: PathText


class ToyJsonl(JsonlSource):
    @classmethod
    def build(cls, config: ToyConfig, context: BuildContext) -> Self:
        model = {"tokenizer_path": config.tokenizer, "tokenizer_type": "huggingface"}
        known = ResolvedConfig(context.section, model)
        return super().build(config, replace(context, config=known))


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"toy_jsonl": Extension(ToyConfig, ToyJsonl.build, needs_model=True)}
