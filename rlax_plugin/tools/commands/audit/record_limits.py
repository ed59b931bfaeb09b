"""The limits that a run's config sets for its records."""

from __future__ import annotations

import math
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
    RewardChoice,
    Rollouts,
    Schedule,
    Scheduled,
    Section,
    Staleness,
    plain_name,
)
from rlax_plugin.config.validation import validate


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits from the run's config; see ``rlax_plugin.config`` for their meaning.

    Attributes:
      tokens_per_batch: minimum tokens of a batch; 0: ``groups_per_step`` groups make a batch.
      rows, row_tokens, sequences_per_row, shared_prompts: the layout of a batch.
      group_sequences: maximum number of sequences of one group.
      reward_weights: weights of ``rlax.rewards``; (): an environment gives rewards as well.
      logged: True if the run trains on logged samples, which have neither versions nor seeds of
        the run, and any number in a group up to ``group_size``.
      temperature: that of rollouts, if it is a schedule; None: groups record none.
      guided: True if groups may have demonstrations.
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
    reward_weights: tuple[Scheduled[float], ...]
    temperature: Schedule | None
    guided: bool
    logged: bool = False


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

    def part[S: Section](model: type[S], name: str, *keys: str) -> S:
        # Only what is needed: the plug-ins of the run may not be installed.
        given = section.get(name) or {}
        return validate(model, {key: given[key] for key in keys if key in given}, f"rlax.{name}")

    size, per_step = "group_size", "groups_per_step"
    lengths = "max_prompt_tokens", "max_new_tokens"
    rollouts = part(Rollouts, "rollouts", "on_new_weights", "temperature", size, per_step, *lengths)
    temperature = rollouts.temperature
    environment = section.get("environment") or {}
    several = plain_name(str(environment.get("name", SINGLE_TURN))) != SINGLE_TURN
    episodes = part(Episodes, "episodes", "max_turns", "max_tokens")
    most = episodes.max_tokens if several else 0
    batches = part(Batches, "batches", "rows", "sequences_per_row", "tokens", "shared_prompts")
    in_row = batches.sequences_per_row if batches.shared_prompts else 1
    return Limits(
        max_staleness=part(Staleness, "staleness", "max_staleness").max_staleness,
        on_new_weights=rollouts.on_new_weights,
        group_size=rollouts.group_size,
        # Each turn may begin a trajectory.
        group_sequences=rollouts.group_size * (episodes.max_turns if several else 1),
        groups_per_step=rollouts.groups_per_step,
        tokens_per_batch=batches.tokens,
        rows=batches.rows or rollouts.groups_per_step * math.ceil(rollouts.group_size / in_row),
        row_tokens=rollouts.max_prompt_tokens + in_row * (most or rollouts.max_new_tokens),
        sequences_per_row=batches.sequences_per_row,
        shared_prompts=batches.shared_prompts,
        pass_threshold=part(Curation, "curation", "pass_threshold").pass_threshold,
        guided=(section.get("objective") or {}).get("guidance") is not None,
        temperature=temperature if isinstance(temperature, Schedule) else None,
        logged=bool(part(LoggedSamples, "logged_samples", "path").path),
        reward_weights=() if several else _weights(section.get("rewards") or []),
    )


def _weights(rewards: list[dict[str, Any]]) -> tuple[Scheduled[float], ...]:
    chosen = (validate(RewardChoice, one, f"rlax.rewards.{i}") for i, one in enumerate(rewards))
    return tuple(one.weight for one in chosen)
