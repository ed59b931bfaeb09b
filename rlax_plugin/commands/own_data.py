"""Examines a user's data for ``rlax init``: its source, its lengths, and a suitable reward."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.build import registry_of
from rlax_plugin.config import Choice, RewardChoice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.prompts.table import PromptTable

_FILES = {
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.xz", ".jsonl.zst"),
    "parquet": (".parquet",),
}
_SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")  # of ``datasets``
_LONGEST = 1 << 20  # tokens: nothing is left out while the data is looked at
_KEPT = 0.99  # share of the prompts that must fit
_MULTIPLE = 8  # of max_prompt_tokens
_LOOKED_AT = 1000  # references
_HELD_OUT, _OF_FEW = 0.05, 0.2  # share of the questions; where there are few
_FEW = 2000
_NUMBER = re.compile(r"\s*[-+]?[0-9][0-9,]*(\.[0-9]+)?\s*")


@dataclass(frozen=True, slots=True)
class OwnData:
    """A prompt source for the user's own data, as a config has it.

    Attributes:
      reward: name of a reward that suits the references.
      max_prompt_tokens: maximum length; longer prompts are left out.
      test_prompts: number of held-out questions.
    """

    prompt_source: Mapping[str, Any]
    reward: str
    max_prompt_tokens: int
    test_prompts: int


def read(data: str, reward: str, maxtext: Mapping[str, Any]) -> OwnData:
    """Reads all of the data, as training will.

    Args:
      data: files as the prompt source ``jsonl`` or ``parquet`` takes them, or a directory that
        ``datasets`` has saved.
      reward: name of a reward; empty: ``numeric`` if the references are numbers, otherwise
        ``exact_match``.
      maxtext: the config's keys of the model.

    Raises:
      ConfigError: the data cannot be used, or has neither references nor a reward.
      RlaxError: the data cannot be prepared.
    """
    source = _source(data)
    share = _HELD_OUT
    kept, test = _tables(source | {"held_out": {"test": share}}, maxtext)
    if len(kept) < _FEW:
        share = _OF_FEW
        kept, test = _tables(source | {"held_out": {"test": share}}, maxtext)
    longest = int(np.quantile(kept.lengths, _KEPT, method="higher"))
    return OwnData(
        source | {"held_out": {"test": share}},
        reward or _reward(kept, data),
        max_prompt_tokens=-(-longest // _MULTIPLE) * _MULTIPLE,
        test_prompts=len(test),
    )


def _source(data: str) -> dict[str, Any]:
    """Returns the prompt source of a config that reads the data."""
    for name, endings in _FILES.items():
        if data.endswith(endings):
            return {"name": name, "path": data}
    if any((Path(data) / one).is_file() for one in _SAVED):
        return {"name": "hf", "dataset": data}
    endings = ", ".join(itertools.chain.from_iterable(_FILES.values()))
    reason = f"must end in one of {endings}, or be a directory that datasets' save_to_disk wrote"
    raise ConfigError("--data", data, reason)


def _tables(
    source: Mapping[str, Any], maxtext: Mapping[str, Any]
) -> tuple[PromptTable, PromptTable | tuple[()]]:
    """Returns the training prompts and the held-out prompts."""
    section = RlaxSection(
        prompt_source=Choice.model_validate(source),
        rewards=(RewardChoice(name="exact_match"),),
    )
    rollouts = section.rollouts.model_copy(update={"max_prompt_tokens": _LONGEST})
    section = section.model_copy(update={"rollouts": rollouts})
    context = BuildContext.outside_run(section, ResolvedConfig(section, maxtext))
    choice = section.prompt_source
    built = registry_of(()).part("prompt_source", choice, "rlax.prompt_source", context)
    kept = built.prompts("train")
    try:
        return kept, built.prompts("test")
    except ConfigError:  # so few questions that none is held out
        return kept, ()


def _reward(prompts: PromptTable, data: str) -> str:
    references = [prompt.reference for prompt in prompts[:_LOOKED_AT]]
    if not any(references):
        reason = (
            f"must name a reward: {data} has no column of references, such as answer, that a "
            "completion could be compared with"
        )
        raise ConfigError("--reward", "", reason)
    return "numeric" if all(map(_NUMBER.fullmatch, references)) else "exact_match"
