"""The examples of docs/sandbox.md, and its table of layers."""

import re
from pathlib import Path

import pytest
import yaml

from rlax_plugin.api import sandbox_layers
from rlax_plugin.config import RlaxSection
from rlax_plugin.reward.sandbox.layers import NAMES

PAGE = (Path(__file__).parents[4] / "docs/sandbox.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")
def test_the_example_runs() -> None:
    examples = blocks("python")
    assert len(examples) == 2
    for example in examples:
        exec(example, {})


def test_a_layer_is_missing_only_because_the_system_refuses_it() -> None:
    """Whatever else a layer fails for would skip the tests of the sandbox."""
    missing = dict(sandbox_layers().missing)
    missing.pop("process limit", None)  # follows from the others
    assert [f"{name}: {why}" for name, why in missing.items() if "[Errno " not in why] == []


def test_every_layer_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| ", PAGE, re.MULTILINE)
    assert tuple(row for row in rows if row in NAMES) == NAMES


def test_the_reward_of_the_page_is_valid() -> None:
    (example,) = blocks("yaml")
    section = yaml.safe_load(example)["rlax"] | {"prompt_source": {"name": "arithmetic"}}
    assert RlaxSection.model_validate(section).rewards[0].name == "python_tests"
