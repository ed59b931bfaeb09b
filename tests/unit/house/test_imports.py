"""What must do without the stack underneath, seen in fresh interpreters."""

import subprocess
import sys
from pathlib import Path

PLUGINS = sorted(path.stem for path in (Path(__file__).parents[3] / "plugins").glob("rlax_*"))
HEAVY = (
    "jax",
    "maxtext",
    "orbax",
    "tensorflow",
    "tensorflow_datasets",
    "tensorstore",
    "tokenizers",
    "torch",
    "transformers",
)
# What must do without them: the commands that only tell, the controller, a reward process.
LIGHT_WORK = """
from pathlib import Path
import rlax_arithmetic, rlax_objectives
import rlax_plugin.training.objective.batches
from rlax_plugin.api import BuildContext
from rlax_plugin.build import build_part
from rlax_plugin.tools.cli import app
from rlax_plugin.config import RlaxSection
from rlax_plugin.training.objective.loss import resolve

app(["explain", "preset"], standalone_mode=False)
check("the list of presets")
for preset in rlax_objectives.rlax_register_objective():
    section = RlaxSection(
        plugins=["rlax_objectives"],
        prompt_source={"name": "any"},
        rewards=[{"name": "any"}],
        objective={"preset": preset},
    )
    context = BuildContext(run_dir=Path("unused"), seed=0, section=section)
    resolve(section, lambda kind, choice, key: build_part(kind, choice, key, context))
    check(f"resolving {preset}")
rlax_arithmetic.rlax_register_prompt_source()
extension = rlax_arithmetic.rlax_register_reward()["exact_answer"]
extension.build(extension.config_class(), None)
check("building a reward")
"""


def test_nothing_is_imported_with_the_stack_underneath() -> None:
    """Importing the framework is cheap; ``rlax check`` imports plug-ins, whose weight waits for
    ``build``, and for some work it never comes."""
    framework = [
        "rlax_plugin.api",
        "rlax_plugin.tools.cli",
        "rlax_plugin.build",
        "rlax_plugin.tools.commands.explain",
        "rlax_plugin.config.loading",
        "rlax_plugin.weights.client",
        "rlax_plugin.weights.parameter_server",
        "rlax_plugin.run.programs.serve",
        "rlax_plugin.run.start.run",
    ]
    modules = framework + PLUGINS
    code = (
        "import importlib, sys\n"
        "def check(what):\n"
        f"    heavy = [m for m in {HEAVY} if m in sys.modules]\n"
        "    assert not heavy, f'{what} imports {heavy}'\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        "    check(module)\n"
    )
    run(code + LIGHT_WORK)


def test_entries_load_nothing_until_it_is_used() -> None:
    """Neither scripts that import the package nor ``rlax --help`` wait for it."""
    run(
        "import sys, rlax_plugin\n"
        "loaded = {name for name in sys.modules if name.startswith('rlax_plugin')}\n"
        "assert loaded == {'rlax_plugin'}, loaded\n"
        "import rlax_plugin.tools.cli\n"
        "assert not {'numpy', 'pydantic'} & set(sys.modules), 'rlax --help would be slow'\n"
        "assert callable(rlax_plugin.train) and callable(rlax_plugin.open)\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not heavy, f'rlax_plugin.train imports {heavy}'"
    )


def run(code: str) -> None:
    """Runs code in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
