"""All prompts of a run: those for training, and those for its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import Choice, EvaluationSet, RlaxSection
from rlax_plugin.data.prompts.checking import (
    checked_prompts,
    first_of,
    read_prompts,
    stop_strings_of,
    training_prompts,
)
from rlax_plugin.ports.protocols import PromptSource

Part = Callable[[str, Choice, str], Any]
"""Builds a part of a kind, as chosen under a key of the config."""


@dataclass(frozen=True, slots=True)
class AskedSet:
    """A set of ``rlax.evaluation`` and its prompts.

    Attributes:
      chosen: its settings, with defaults filled in.
      prompts: the prompts that are issued.
    """

    name: str
    chosen: EvaluationSet
    source: PromptSource
    prompts: Sequence[Prompt]


def asked_sets(section: RlaxSection, source: PromptSource, part: Part) -> list[AskedSet]:
    """The sets of ``rlax.evaluation``, the main one first; none if evaluation is off.

    Args:
      source: prompt source of the training.
      part: builds a part of the config.

    Raises:
      ConfigError: a set has no problems, or has problems that the workers cannot take.
    """
    settings = section.evaluation
    found: list[AskedSet] = []
    for name, chosen in settings.all_sets().items() if settings.problems else ():
        key = f"rlax.evaluation.sets.{name}" if found else "rlax.evaluation"
        its_source = source
        if chosen.prompt_source is not None:
            its_source = part("prompt_source", chosen.prompt_source, f"{key}.prompt_source")
            _check_source(section, its_source, source, chosen.prompt_source.name, key)
        prompts = _prompts(section, its_source, chosen, key)
        found.append(AskedSet(name, chosen, its_source, prompts))
    return found


@dataclass(frozen=True, slots=True)
class RunPrompts:
    """All prompts of a run, read and checked.

    Attributes:
      train: training prompts; () if the command trains nothing.
      asked: the sets of its evaluations.
    """

    source: PromptSource
    train: Sequence[Prompt]
    asked: Sequence[AskedSet]

    @classmethod
    def read(
        cls,
        section: RlaxSection,
        part: Part,
        *,
        trains: bool = True,
        note: Callable[[str], object] = lambda text: None,
    ) -> RunPrompts:
        """Reads all prompts; blocking, possibly for minutes.

        Args:
          note: see ``training_prompts``.

        Raises:
          RlaxError: see ``training_prompts`` and ``asked_sets``.
        """
        key = "rlax.prompt_source"
        source: PromptSource = part("prompt_source", section.prompt_source, key)
        train = training_prompts(section, source, note=note) if trains else ()
        return cls(source, train, asked_sets(section, source, part))


def _check_source(
    section: RlaxSection, its: PromptSource, training: PromptSource, name: str, key: str
) -> None:
    strings = tuple(sorted(stop_strings_of(one)) for one in (its, training))  # checks them, too
    if section.rollouts.ignore_stop:
        return
    endings = {
        "stop ids": (list(its.stop_ids), list(training.stop_ids)),
        "stop strings": strings,
    }
    for what, (ours, theirs) in endings.items():
        if set(ours) != set(theirs):
            reason = (
                f"has {what} {ours}, but must have those of rlax.prompt_source, {theirs}, with "
                "which the policy has learned to end"
            )
            raise ConfigError(f"{key}.prompt_source", name, reason)


def _prompts(
    section: RlaxSection, source: PromptSource, chosen: EvaluationSet, key: str
) -> Sequence[Prompt]:
    try:
        split = chosen.split or ""
        prompts = first_of(read_prompts(source, split, f"{key}.split", split), chosen.problems)
    except ConfigError as error:
        if error.value == chosen.split:  # a source does not know which key asks for the split
            raise ConfigError(f"{key}.split", chosen.split, error.reason) from None
        if chosen.prompt_source is not None and error.key.startswith("rlax.prompt_source"):
            own = f"{key}{error.key.removeprefix('rlax')}"
            raise ConfigError(own, error.value, error.reason) from None
        raise
    if not prompts:
        raise ConfigError(f"{key}.split", chosen.split, "has no problems: choose another split")
    longest, most = max(len(p.tokens) for p in prompts), section.rollouts.max_prompt_tokens
    if longest > most:
        raise ConfigError(
            "rlax.rollouts.max_prompt_tokens",
            most,
            f"must be at least {longest}, the longest prompt of {key} (split {chosen.split})",
        )
    owner = f"{'rlax' if chosen.prompt_source is None else key}.prompt_source"
    name = (chosen.prompt_source or section.prompt_source).name
    return checked_prompts(prompts, chosen.split or "", owner, name)
