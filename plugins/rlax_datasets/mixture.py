"""The prompt source ``mixture``, which combines several data sets by weight."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Self

from pydantic import Field, field_validator

from rlax_plugin.api import (
    BuildContext,
    Choice,
    ConfigError,
    DatasetSource,
    Prompt,
    PromptTable,
    Section,
    TextSource,
    alternatives,
)

_KEY = "rlax.prompt_source"
_TRAIN = "train"
_SEPARATOR = "/"  # between a source's name and that of a domain of its


class WeightedSource(Choice):
    """A prompt source and its share of the training prompts relative to the others."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class MixtureConfig(Section):
    """Prompts of several sources over data sets, such as jsonl and hf, in fixed proportions.

    Each source is a domain. It keeps its own splits; a split of the mixture is that of all sources
    that have one of this name.
    """

    sources: Mapping[str, WeightedSource] = Field(
        min_length=1,
        description="name -> {weight, name, options...}: a prompt source, and its share of the "
        "training prompts relative to the others (1 unless given); such as {sums: {weight: 3, "
        "name: jsonl, path: sums.jsonl}, words: {name: hf, dataset: ./words}}",
    )

    @field_validator("sources")
    @classmethod
    def _names_are_plain(cls, found: Mapping[str, WeightedSource]) -> Mapping[str, WeightedSource]:
        for name in found:
            if not name or not name.isprintable() or _SEPARATOR in name or "." in name:
                raise ConfigError("sources", name, "must be a name without dots and slashes")
        return found


class Mixture(TextSource):
    """Several sources combined into one.

    Attributes:
      sources: name -> source.

    Raises:
      ConfigError: a source is of another kind, or they differ in how a completion ends.
    """

    def __init__(self, sources: Mapping[str, DatasetSource], weights: Mapping[str, float]):
        (first_name, first), *others = sources.items()
        for name, source in others:
            for option in ("chat", "stop_strings"):
                its, theirs = getattr(source, option), getattr(first, option)
                if its != theirs:
                    reason = f"must be the same as that of {first_name}: {theirs!r}"
                    raise ConfigError(f"{_KEY}.sources.{name}.{option}", its, reason)
            if source.tokenizer.directory != first.tokenizer.directory:
                reason = f"must be the same as that of {first_name}: {first.config.tokenizer!r}"
                raise ConfigError(
                    f"{_KEY}.sources.{name}.tokenizer", source.config.tokenizer, reason
                )
        super().__init__(
            first.tokenizer,
            chat=first.chat,
            system=first.config.system,
            stop_strings=first.stop_strings,
        )
        self.sources, self._weights, self.chat = dict(sources), dict(weights), first.chat
        self.splits = tuple(dict.fromkeys(one for s in sources.values() for one in s.splits))
        self._tables: dict[str, PromptTable] = {}

    @classmethod
    def build(cls, config: MixtureConfig, context: BuildContext) -> Self:
        """Builds the sources for ``Extension``, without reading their data yet."""
        sources = {}
        for name, choice in config.sources.items():
            with _named(name):
                key = f"{_KEY}.sources.{name}"
                found = context.part("prompt_source", _plain(choice), key)
            if not isinstance(found, DatasetSource):
                reason = "must be a source over a data set, such as jsonl, parquet, hf or tfds"
                raise ConfigError(f"{_KEY}.sources.{name}.name", choice.name, reason)
            sources[name] = found
        return cls(sources, {name: one.weight for name, one in config.sources.items()})

    def messages(self, prompt: Prompt) -> list[Mapping[str, Any]]:
        """See ``TextSource``; a prompt does not say which source's system message it has.

        Raises:
          ValueError: there are several system messages.
        """
        if len({one.config.system for one in self.sources.values()}) > 1:
            raise ValueError("the sources of the mixture have different system messages")
        return super().messages(prompt)

    def prompts(self, split: str) -> PromptTable:
        """See ``PromptSource`` and ``DatasetSource.prompts``."""
        if split not in self.splits:
            known = alternatives(split, self.splits)
            reason = f"no such split; {known}; the sources' options make others"
            raise ConfigError(f"split of {_KEY}", split, reason)
        if split not in self._tables:
            found = {}
            for name, source in self.sources.items():
                if split in source.splits:
                    with _named(name):
                        found[name] = source.prompts(split)
            if split == _TRAIN:
                found = {name: self._apart(name, table) for name, table in found.items()}
            self._tables[split] = PromptTable.joined(found, self._weights)
        return self._tables[split]

    def _apart(self, name: str, table: PromptTable) -> PromptTable:
        """Returns a source's training prompts that are in no evaluation split of other sources."""
        if self.sources[name].config.duplicates == "keep":
            return table
        for other, source in self.sources.items():
            for split in source.splits:
                if split == _TRAIN or other == name:  # the source itself has seen to its own
                    continue
                with contextlib.suppress(ConfigError):  # it is empty
                    table = table.without_questions_of(
                        source.prompts(split), f"split {split} of {other}"
                    )
        if not len(table):
            reason = (
                "has no prompts left for training: other sources are evaluated with all of them"
            )
            raise ConfigError(f"{_KEY}.sources", name, reason)
        return table

    def identity(self) -> dict[str, Any]:
        """Returns the files of all sources; see ``DatasetSource.identity``."""
        files: dict[str, Any] = {}
        for name, source in self.sources.items():
            with _named(name):
                of_source = source.identity()["files"]
            files |= {f"{name}{_SEPARATOR}{split}": some for split, some in of_source.items()}
        return {"files": files}


def _plain(choice: WeightedSource) -> Choice:
    return Choice(name=choice.name, **choice.options)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Changes the keys in errors of a source to the keys of the mixture."""
    try:
        yield
    except ConfigError as error:
        own = f"{_KEY}.sources.{name}"
        if not error.key.startswith(_KEY) or error.key.startswith(own):
            raise
        key = own + error.key.removeprefix(_KEY)
        raise ConfigError(key, error.value, error.reason) from error


def check_start(config: MixtureConfig, context: BuildContext) -> None:
    """Checks that the sources exist and their options are right, and runs their own checks.

    Raises:
      ConfigError: a check fails.
    """
    Mixture.build(config, context)
    for name, choice in config.sources.items():
        with _named(name):
            context.check_part("prompt_source", _plain(choice), f"{_KEY}.sources.{name}")
