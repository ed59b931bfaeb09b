"""Several environments in one run: what each of them has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.base import (
    Choice,
    EnvironmentChoice,
    PositiveInt,
    Processes,
    RewardChoice,
    Seconds,
    Section,
)
from rlax_plugin.config.objective import Overlong, Slot
from rlax_plugin.config.rollouts import Episodes


class OwnRollouts(Section):
    """Limits of the answers in one environment."""

    max_new_tokens: PositiveInt | None = Field(
        default=None,
        description="maximum length of one answer, in tokens; null: rlax.rollouts.max_new_tokens, "
        "which it must not exceed",
    )


class OwnDeadlines(Section):
    """Time limits of one environment, in seconds."""

    reward_s: Seconds | None = Field(default=None, description="null: rlax.deadlines.reward_s")
    episode_s: Seconds | None = Field(default=None, description="null: rlax.deadlines.episode_s")


class OwnObjective(Section):
    """Where the algorithm of one environment differs: only in its advantages.

    They are computed over the groups of one environment in a batch, with or without these keys.
    """

    preset: str | None = Field(
        default=None,
        description="preset whose advantage and overlong are used; it must not differ from "
        "rlax.objective in anything else. null: those of rlax.objective",
    )
    advantage: Slot | None = Field(
        default=None, description="computation of advantages from rewards; null: as preset says"
    )
    overlong: Overlong | None = Field(
        default=None, description="penalty of long samples; null: as preset says"
    )


class OwnEnvironment(Section):
    """One of several environments. NAME stands for the name that you give it.

    A key that is left out has the value of the key of this name below ``rlax``.
    """

    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=1.0, description="its share of the trained groups, relative to the other ones"
    )
    prompt_source: Choice = Field(default=..., description="prompt dataset of this environment")
    environment: EnvironmentChoice | None = Field(
        default=None, description="environment; null: rlax.environment"
    )
    rewards: tuple[RewardChoice, ...] | None = Field(
        default=None, description="rewards with their weights; null: rlax.rewards"
    )
    reward_processes: Processes | None = Field(
        default=None,
        description="number of processes for its rewards and episodes alone; null: "
        "rlax.reward_processes",
    )
    episodes: Episodes = Episodes()
    rollouts: OwnRollouts = OwnRollouts()
    deadlines: OwnDeadlines = OwnDeadlines()
    objective: OwnObjective = OwnObjective()

    def over(self, section: Any) -> dict[str, Any]:
        """Returns the keys of a section ``rlax`` that this environment replaces, by name."""
        found: dict[str, Any] = {
            name: own
            for name in ("prompt_source", "environment", "rewards", "reward_processes")
            if (own := getattr(self, name)) is not None
        }
        for name in ("episodes", "rollouts", "deadlines", "objective"):
            given = getattr(self, name)
            own = {key: getattr(given, key) for key in self.given(name)}
            if "preset" in own:  # whose advantage counts, not the one that rlax.objective names
                own.setdefault("advantage", None)
            found[name] = getattr(section, name).model_copy(update=own)
        return found

    def given(self, name: str) -> set[str]:
        """Returns the keys of a section of this environment that are given."""
        section = getattr(self, name)
        return {key for key in section.model_fields_set if getattr(section, key) is not None}


def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fills in what only a run with one environment must give, from the first of several by name.

    The prompt sources agree in tokenizer and ends, for which that of the first one stands.

    Args:
      values: of a section ``rlax``, unchecked.

    Raises:
      ConfigError: ``prompt_source`` is given as well.
    """
    several = values.get("environments")
    if not several or not isinstance(several, Mapping):
        return values
    if "prompt_source" in values:
        reason = "must be left out with rlax.environments, each of which has its own"
        raise ConfigError("rlax.prompt_source", values["prompt_source"], reason)
    first = several[min(several, key=str)]
    source = first.get("prompt_source") if isinstance(first, Mapping) else None
    # One that is missing is an error at its own key.
    return {"rewards": [], **values, "prompt_source": source or {"name": ""}}
