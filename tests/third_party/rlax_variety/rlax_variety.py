"""Reward ``variety`` and objective ``gentle_rloo``: answers that do not repeat themselves."""

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    Choice,
    Extension,
    NoOptions,
    Preset,
    Prompt,
    Reward,
    Section,
    hookimpl,
)


class VarietyConfig(Section):
    weight: float = Field(default=1.0, gt=0, description="reward if no character comes twice")


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    def build(config: VarietyConfig, context: BuildContext) -> Reward:
        def variety(prompt: Prompt, completion: str) -> float:
            return config.weight * len(set(completion)) / max(1, len(completion))

        return variety

    return {"variety": Extension(VarietyConfig, build)}


@hookimpl
def rlax_register_objective() -> dict[str, Extension]:
    preset = Preset(
        title="Leave-one-out, weights cut at 1.5, every token alike",
        aggregation=Choice(name="token_mean"),
        importance_weight=Choice(name="truncated", cap=1.5),
        advantage=Choice(name="leave_one_out"),
        grad_1=Choice(name="log_prob"),
        corrections=(Choice(name="veto", threshold=1e-3),),
    )
    return {"gentle_rloo": Extension(NoOptions, lambda config, context: preset)}
