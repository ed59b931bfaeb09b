"""Reward ``variety`` and objective ``gentle_rloo``: answers that do not repeat themselves."""

from pydantic import Field

from rlax_plugin import api


class VarietyConfig(api.Section):
    most: float = Field(default=1.0, gt=0, description="reward if no character comes twice")


@api.hookimpl
def rlax_register_reward() -> dict[str, api.Extension]:
    def build(config: VarietyConfig, context: api.BuildContext) -> api.Reward:
        def variety(prompt: api.Prompt, completion: str) -> float:
            return config.most * len(set(completion)) / max(1, len(completion))

        return variety

    return {"variety": api.Extension(VarietyConfig, build)}


@api.hookimpl
def rlax_register_objective() -> dict[str, api.Extension]:
    preset = api.Preset(
        title="Leave-one-out, weights cut at 1.5, every token alike",
        aggregation=api.Choice(name="token_mean"),
        importance_weight=api.Choice(name="truncated", cap=1.5),
        advantage=api.Choice(name="leave_one_out"),
        grad_1=api.Choice(name="log_prob"),
        corrections=(api.Choice(name="veto", threshold=1e-3),),
    )
    return {"gentle_rloo": api.Extension(api.NoOptions, lambda config, context: preset)}
