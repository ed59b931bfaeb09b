"""The limits that a run's config sets for its records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.config import (
    SINGLE_TURN,
    Batches,
    Curation,
    Episodes,
    LoggedSamples,
    OwnEnvironment,
    RewardChoice,
    Rollouts,
    Schedule,
    Scheduled,
    Section,
    Staleness,
    plain_name,
)
from rlax_plugin.config.validation import validate

_BELOW = ("episodes", "rollouts")  # sections of which an environment replaces single keys


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits from the run's config; see ``rlax_plugin.config`` for their meaning.

    Attributes:
      tokens_per_batch: minimum tokens of a batch; 0: ``groups_per_step`` groups make a batch.
      rows, row_tokens, sequences_per_row, shared_prompts: the layout of a batch.
      group_sequences: maximum number of sequences of one group.
      reward_weights: environment -> weights of its rewards; (): it gives rewards as well. The name
        is "" if there is one environment.
      shares: environment -> weight; empty if there is one.
      look_ahead: number of batches over whose groups a batch may pass, if they are unfinished.
      logged: True if the run trains on logged samples, which have neither versions nor seeds of
        the run, and any number in a group up to ``group_size``.
      temperature: that of rollouts, if it is a schedule; None: groups record none.
      guided: True if groups may have demonstrations.
      selected: rows of a batch for each of its groups, with a selection; 0: there is none.
    """

    max_staleness: int
    on_new_weights: str
    group_size: int
    group_sequences: int
    groups_per_step: int
    tokens_per_batch: int
    rows: int
    row_tokens: int
    sequences_per_row: int
    shared_prompts: bool
    pass_threshold: float
    reward_weights: Mapping[str, tuple[Scheduled[float], ...]]
    shares: Mapping[str, float]
    look_ahead: int
    temperature: Schedule | None
    guided: bool
    selected: int = 0
    logged: bool = False

    def environment_of(self, prompt: str) -> str:
        """Returns the environment of a prompt's id; "" if there is one."""
        return prompt.partition("/")[0] if self.shares else ""


def read_limits(files: RunFiles) -> Limits:
    """Reads the limits from the config in the run's directory.

    Raises:
      ConfigError: the config is missing or damaged.
    """
    location = files.location(CONFIG)
    try:
        document = yaml.safe_load(files.get(CONFIG))
    except FileNotFoundError:
        reason = "is missing, but the audit needs the run's config"
        raise ConfigError(location, None, reason) from None
    except yaml.YAMLError as error:
        raise ConfigError(location, None, f"is not valid YAML: {error}") from error
    section = document.get("rlax") if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(location, None, "has no section rlax:")

    own = section.get("environments") or {}
    if not isinstance(own, dict) or not all(isinstance(one, dict) for one in own.values()):
        raise ConfigError(location, None, "has rlax.environments that are no mappings")
    own = dict(sorted(own.items(), key=lambda named: str(named[0])))
    each = {name: _merged(section, one) for name, one in own.items()} or {"": section}

    def part[S: Section](
        model: type[S], name: str, *keys: str, section: Mapping[str, Any] = section
    ) -> S:
        # Only what is needed: the plug-ins of the run may not be installed.
        given = section.get(name) or {}
        return validate(model, {key: given[key] for key in keys if key in given}, f"rlax.{name}")

    size, per_step = "group_size", "groups_per_step"
    lengths = "max_prompt_tokens", "max_new_tokens"
    rollouts = part(Rollouts, "rollouts", "on_new_weights", "temperature", size, per_step, *lengths)
    temperature = rollouts.temperature
    turns, tokens, weights = [], [], dict[str, tuple[Scheduled[float], ...]]()
    for name, one in each.items():
        environment = one.get("environment") or {}
        several = plain_name(str(environment.get("name", SINGLE_TURN))) != SINGLE_TURN
        episodes = part(Episodes, "episodes", "max_turns", "max_tokens", section=one)
        answer = part(Rollouts, "rollouts", "max_new_tokens", section=one).max_new_tokens
        turns.append(episodes.max_turns if several else 1)
        tokens.append((episodes.max_tokens if several else 0) or answer)
        weights[name] = () if several else _weights(one.get("rewards") or [])
    layout = "rows", "sequences_per_row", "tokens", "shared_prompts", "look_ahead"
    batches = part(Batches, "batches", *layout)
    in_row = batches.sequences_per_row if batches.shared_prompts else 1
    curation = part(Curation, "curation", "pass_threshold", "selection")
    selected = (curation.selection.samples or rollouts.group_size) if curation.selection else 0
    return Limits(
        max_staleness=part(Staleness, "staleness", "max_staleness").max_staleness,
        on_new_weights=rollouts.on_new_weights,
        group_size=rollouts.group_size,
        # Each turn may begin a trajectory.
        group_sequences=rollouts.group_size * max(turns),
        groups_per_step=rollouts.groups_per_step,
        tokens_per_batch=batches.tokens,
        rows=batches.rows
        or rollouts.groups_per_step * (selected or math.ceil(rollouts.group_size / in_row)),
        row_tokens=rollouts.max_prompt_tokens + in_row * max(tokens),
        sequences_per_row=batches.sequences_per_row,
        shared_prompts=batches.shared_prompts,
        pass_threshold=curation.pass_threshold,
        selected=selected,
        guided=(section.get("objective") or {}).get("guidance") is not None,
        temperature=temperature if isinstance(temperature, Schedule) else None,
        logged=bool(part(LoggedSamples, "logged_samples", "path").path),
        reward_weights=weights,
        shares={
            name: validate(OwnEnvironment, one, f"rlax.environments.{name}").weight
            for name, one in own.items()
        },
        look_ahead=batches.look_ahead,
    )


def _merged(section: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section of a run with one of its environments alone."""
    own = {name: value for name, value in own.items() if value is not None}
    below = {
        name: (section.get(name) or {})
        | {key: value for key, value in own.get(name, {}).items() if value is not None}
        for name in _BELOW
    }
    return {**section, **own, **below}


def _weights(rewards: list[dict[str, Any]]) -> tuple[Scheduled[float], ...]:
    chosen = (validate(RewardChoice, one, f"rlax.rewards.{i}") for i, one in enumerate(rewards))
    return tuple(one.weight for one in chosen)
