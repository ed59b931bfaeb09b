"""All prompts of a run: those for training, and those for its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from rlax_plugin.data.prompts.table import JoinedPrompts
from rlax_plugin.ports.protocols import PromptSource

Part = Callable[[str, Choice, str], Any]
"""Builds a part of a kind, as chosen under a key of the config."""


@dataclass(frozen=True, slots=True)
class AskedSet:
    """A set of ``rlax.evaluation`` and its prompts.

    Attributes:
      chosen: its settings, with defaults filled in.
      prompts: the prompts that are issued.
      environment: the one of several whose episodes are played; "" if there is one.
    """

    name: str
    chosen: EvaluationSet
    source: PromptSource
    prompts: Sequence[Prompt]
    environment: str = ""


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
            own = f"{key}.prompt_source"
            _check_source(section, its_source, source, chosen.prompt_source.name, own)
        prompts = _prompts(section, its_source, chosen, key)
        found.append(AskedSet(name, chosen, its_source, prompts))
    return found


@dataclass(frozen=True, slots=True)
class RunPrompts:
    """All prompts of a run, read and checked.

    Attributes:
      source: of the training prompts; of several environments, that of the first one.
      train: training prompts, ``JoinedPrompts`` of several environments; () if the command trains
        nothing.
      asked: the sets of its evaluations; of several environments, one for each.
      sources: environment -> its prompt source; empty if there is one.
    """

    source: PromptSource
    train: Sequence[Prompt]
    asked: Sequence[AskedSet]
    sources: Mapping[str, PromptSource] = field(default_factory=dict)

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
        sources: dict[str, PromptSource] = {}
        train: dict[str, Sequence[Prompt]] = {}
        asked: list[AskedSet] = []
        for name, one in section.by_environment.items():
            key = section.key_of(name, "prompt_source")
            with section.keys_of(name):
                source = sources[name] = part("prompt_source", one.prompt_source, key)
                first, its_name = next(iter(sources.values())), one.prompt_source.name
                _check_source(one, source, first, its_name, key, "the first environment")
                _check_tokenizer(source, first, its_name, key)
                train[name] = training_prompts(one, source, note=note) if trains else ()
                sets = asked_sets(one, source, part)
            asked += [replace(a, name=name, environment=name) for a in sets] if name else sets
        prompts = JoinedPrompts(train) if section.environments and trains else train.get("", ())
        several = sources if section.environments else {}
        return cls(next(iter(sources.values())), prompts, asked, several)

    def source_of(self, environment: str) -> PromptSource:
        """Returns the prompt source of an environment; "": there is one."""
        return self.sources[environment] if environment else self.source

    def identity(self) -> dict[str, Any]:
        """Returns the files of the training prompts, see ``PromptSource.identity``."""
        if not self.sources:
            return dict(self.source.identity())
        found = {name: source.identity() for name, source in self.sources.items()}
        files = {
            f"{name}/{split}": some
            for name, own in found.items()
            for split, some in own.get("files", {}).items()
        }
        return {"files": files}


def _check_tokenizer(its: PromptSource, first: PromptSource, name: str, key: str) -> None:
    ours, theirs = (getattr(one.tokenizer, "directory", None) for one in (its, first))
    if ours != theirs:
        reason = f"has the tokenizer {ours}, but must have that of the first environment, {theirs}"
        raise ConfigError(key, name, reason)


def _check_source(
    section: RlaxSection,
    its: PromptSource,
    training: PromptSource,
    name: str,
    key: str,
    other: str = "rlax.prompt_source",
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
                f"has {what} {ours}, but must have those of {other}, {theirs}, with "
                "which the policy has learned to end"
            )
            raise ConfigError(key, name, reason)


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
