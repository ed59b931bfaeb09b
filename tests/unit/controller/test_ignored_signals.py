"""Trainers that lack an ability, and configs that need it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sections import section_with

from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.controller.chosen import Builder
from rlax_plugin.errors import ConfigError
from rlax_plugin.ports.protocols import BuildContext


def trainer(takes: bool | None, *signals: str) -> Any:
    """The trainer that a builder returns; None: it says nothing of signals."""
    built = SimpleNamespace() if takes is None else SimpleNamespace(takes_signals=takes)
    section = section_with(trainer={"name": "own"}, signals=[{"name": name} for name in signals])
    context = BuildContext(Path(), 0, section, ResolvedConfig(section))
    registry: Any = SimpleNamespace(part=lambda *_: built)
    return Builder(registry, context).trainer()


@pytest.mark.parametrize("takes", [None, False])
def test_signals_that_a_trainer_would_ignore_are_an_error_that_names_it(takes):
    with pytest.raises(ConfigError, match=r"rlax\.signals.*critic.*rlax\.trainer\.name 'own'"):
        trainer(takes, "critic")
    assert trainer(takes) is not None


def test_a_trainer_that_takes_signals_is_built():
    assert trainer(True, "critic").takes_signals


@pytest.mark.parametrize(
    ("ability", "needs", "words"),
    [
        (
            "takes_shared_prompts",
            {"batches": {"sequences_per_row": 4, "shared_prompts": True}},
            "shared_prompts = True: must be false ",
        ),
        (
            "rounds_weights",
            {"weights": {"dtype": "bfloat16"}},
            "dtype = 'bfloat16': must be model with ",
        ),
    ],
)
@pytest.mark.parametrize("has", [None, False, True])
def test_what_a_config_asks_of_a_trainer_needs_the_ability(ability, needs, words, has):
    built = SimpleNamespace() if has is None else SimpleNamespace(**{ability: has})
    section = section_with(trainer={"name": "own"}, **needs)
    registry: Any = SimpleNamespace(part=lambda *_: built)
    builder = Builder(registry, BuildContext(Path(), 0, section, ResolvedConfig(section)))
    if has:
        assert builder.trainer() is built
        return
    with pytest.raises(ConfigError, match=f"{words}.*name 'own'"):
        builder.trainer()
