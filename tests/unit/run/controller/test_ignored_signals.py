"""What a config asks of a trainer, the trainer must declare."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sections import section_with

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.run.controller.chosen import Builder

ABILITIES = ("takes_signals", "takes_shared_prompts", "rounds_weights")


@pytest.mark.parametrize(
    ("ability", "needs", "words"),
    [
        ("takes_signals", {"signals": [{"name": "critic"}]}, r"rlax\.signals.*critic.*ignored"),
        (
            "takes_shared_prompts",
            {"batches": {"sequences_per_row": 4, "shared_prompts": True}},
            "shared_prompts = True: must be false ",
        ),
        ("rounds_weights", {"weights": {"dtype": "bfloat16"}}, "must be model with "),
    ],
)
def test_what_a_config_asks_of_a_trainer_needs_the_ability(
    ability: str, needs: dict[str, Any], words: str
) -> None:
    def built(section: Any, **declared: bool) -> Any:
        trainer = SimpleNamespace(**dict.fromkeys(ABILITIES, False) | declared)
        registry: Any = SimpleNamespace(part=lambda *_: trainer)
        context = BuildContext(Path(), 0, section, ResolvedConfig(section))
        return Builder(registry, context).trainer()

    section = section_with(trainer={"name": "own"}, **needs)
    assert getattr(built(section, **{ability: True}), ability)
    assert built(section_with(trainer={"name": "own"})) is not None
    with pytest.raises(ConfigError, match=f"{words}.*name 'own'"):
        built(section)
