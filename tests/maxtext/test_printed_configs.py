"""The configs of ``configs/`` that need no converted model: each as it is printed.

``tests/unit/tools/commands/test_check.py`` has the quick check of all of them, and
``test_pretrained_runs.py`` those for SmolLM2 and those of pages.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import rlax
from processes import finished, python_path

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yml"))
WHOLE = [name for name in CONFIGS if "smollm2" not in name]
TRAIN_HERE = [name for name in WHOLE if name != "scale.yml"]  # which is for 16 chips
STEPS = {"demo_ppo.yml": 7}  # otherwise 2; its critic has 5 steps alone

pytestmark = pytest.mark.long


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the configs, and with the plug-in that has a tokenizer."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "plugins").symlink_to(ROOT / "plugins")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "configs")  # tool_task.py
    return tmp_path


@pytest.mark.parametrize("name", WHOLE)
def test_a_config_passes_the_whole_check(name: str, checkout: Path) -> None:
    checked = rlax("check", f"configs/{name}", "--json")
    assert checked.exit_code == 0, checked.stderr
    explained = json.loads(checked.stdout)
    assert {"rlax.trainer", "rlax.rollouts.engine"} <= explained["memory_bytes"].keys()
    no_device = [one["text"] for one in explained["warnings"] if one["key"] == "hardware"]
    assert len(no_device) == (name not in TRAIN_HERE), no_device


@pytest.mark.timeout(1500)  # a warm start and two evaluations, on machines that do other work
@pytest.mark.parametrize("name", TRAIN_HERE)
def test_a_config_for_the_processor_trains_as_it_is_printed(
    name: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT / "configs"))
    steps = STEPS.get(name, 2)
    trained = finished("train", f"configs/{name}", f"steps={steps}", cwd=checkout, timeout_s=1400)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    (directory,) = (checkout / "runs").iterdir()
    run = RunFiles(directory)
    lines = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1)) and audit(run).clean
