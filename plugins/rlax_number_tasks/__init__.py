"""Task plug-in: the largest or the sum of a few numbers, for pretrained language models.

Its answers are numbers, which the reward ``exact_answer`` scores.
"""

from __future__ import annotations

from rlax_number_tasks.source import NumberTasks, NumberTasksConfig
from rlax_plugin.api import BuildContext, Extension, hookimpl, model_tokenizer

__all__ = ["NumberTasks", "NumberTasksConfig"]


def _build(config: NumberTasksConfig, context: BuildContext) -> NumberTasks:
    return NumberTasks(config, model_tokenizer(context))


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"number_tasks": Extension(NumberTasksConfig, _build, needs_model=True)}
