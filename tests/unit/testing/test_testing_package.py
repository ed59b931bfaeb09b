"""``rlax_plugin.testing`` as a plug-in: light, loadable by its dotted name, complete."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import rlax_plugin.testing
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import load_section

CONFIG = str(Path(__file__).parents[3] / "tests/configs/testing.yml")


def test_no_module_of_it_imports_jax_or_the_stack() -> None:
    found = pkgutil.walk_packages(rlax_plugin.testing.__path__, "rlax_plugin.testing.")
    modules = ["rlax_plugin.testing", "rlax_plugin.weights.verification", *(m.name for m in found)]
    assert len(modules) >= 9
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        "heavy = {'jax', 'jaxlib', 'maxtext', 'orbax', 'tensorflow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr


def test_a_config_that_lists_it_is_valid() -> None:
    section, _ = load_section(CONFIG)
    registry = registry_for(section)
    registry.validate(section)
    offered = {
        kind: sorted(name for name, o in names.items() if o.plugin == "rlax_plugin.testing")
        for kind, names in registry.offers.items()
    }
    assert {kind: names for kind, names in offered.items() if names} == {
        "observer": ["tally"],
        "prompt_source": ["numbers"],
        "reward": ["even"],
        "rollout_engine": ["scripted"],
        "signal": ["running_value"],
        "trainer": ["bigram"],
        "weight_store": ["npz"],
    }


def test_every_option_says_what_it_does() -> None:
    section, _ = load_section(CONFIG)
    for names in registry_for(section).offers.values():
        for name, offer in names.items():
            if offer.plugin == "rlax_plugin.testing":
                for option, field in offer.extension.config_class.model_fields.items():
                    assert field.description, f"{name}.{option}"
