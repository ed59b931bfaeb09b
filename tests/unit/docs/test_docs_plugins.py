"""docs/writing_plugins.md takes an author from nothing to a wheel; every block of it is run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from documents import ROOT, fences, read, sections
from installs import on_path

from rlax_plugin import testing
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import load_section
from rlax_plugin.ports.protocols import BuildContext

PAGE = sections(read("writing_plugins.md"), 2)
REWARD, PACKAGE = (PAGE[name] for name in ("One file", "A package"))
CONFIG = yaml.safe_load(fences(REWARD, "yaml")[0])


def files() -> dict[str, str]:
    """The package's files by name."""
    return dict(re.findall(r"^\*\*`([\w.]+)`\*\*\n\n```\w+\n(.*?)^```", PACKAGE, re.S | re.M))


def shell(folder: Path, script: str, settings: Mapping[str, str] = {}) -> str:
    """Runs a block of commands as its reader would; returns what it prints."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "200"} | settings,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_first_file_is_checked_and_trains(tmp_path: Path) -> None:
    (tmp_path / "length_reward.py").write_text(fences(REWARD, "python")[0])
    (tmp_path / "try.yml").write_text(fences(REWARD, "yaml")[0])
    (script,) = fences(REWARD, "sh")
    assert "rlax train try.yml" in script
    told = shell(tmp_path, script)
    assert "target_length" in told and "ok  section rlax: and 2 plug-ins of try.yml" in told
    summary = json.loads((tmp_path / "runs/try/summary.json").read_text())
    assert summary["steps"] == CONFIG["steps"]
    steps = [json.loads(x) for x in (tmp_path / "runs/try/metrics.jsonl").read_text().splitlines()]
    rewards = [step["reward/mean"] for step in steps]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where the package's wheel is installed, and what the commands that did it printed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name, text in files().items():
        (source / name).write_text(text)
    # What makes pip do without a network, and install beside this environment.
    pip = {"NO_BUILD_ISOLATION": "0", "NO_INDEX": "1", "NO_DEPS": "1", "TARGET": str(target)}
    settings = {f"PIP_{key}": value for key, value in pip.items()}
    path = os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH"))))
    told = shell(source, fences(PACKAGE, "sh")[0], settings | {"PYTHONPATH": path})
    assert (target / "rlax_brief.py").exists() and not (target / "test_rlax_brief.py").exists()
    return target, told


def test_the_wheel_is_a_plug_in_by_its_entry_point(installed: tuple[Path, str]) -> None:
    _, told = installed
    assert "2 passed" in told
    rows = told.split("installed plug-ins")[1]
    assert re.search(r"rlax_brief +reward: brief +rlax-brief +0\.1\.0", rows)
    assert "objective: brief_grpo" in rows


def test_the_command_for_the_demo_names_parts_that_exist(installed: tuple[Path, str]) -> None:
    target, _ = installed
    (line,) = fences(PACKAGE, "sh")[1].splitlines()
    # The shell's own splitting, so that quoting is checked too.
    words = shell(ROOT, f"printf '%s\\n' {line}").splitlines()
    assert words[:2] == ["rlax", "train"]
    with on_path(target):
        section, _ = load_section(ROOT / words[2], words[3:])
        registry_for(section).validate(section)
        built = registry_for(section).part(
            "reward", section.rewards[1], "rlax.rewards.1", _context(section)
        )
    assert built(None, "123") == pytest.approx(-0.02)


def _context(section: RlaxSection) -> BuildContext:
    return BuildContext(run_dir=Path(), seed=0, section=section)


def test_what_it_says_of_the_testing_module_is_there() -> None:
    told = re.compile(r"(?:make|check|Fake|publish)_?[A-Za-z_]+")
    names = re.findall(rf"`({told.pattern})`", PAGE["More for tests"])
    # check_plugin and evaluate_objective come earlier on the page.
    assert {*names, "check_plugin"} == {name for name in testing.__all__ if told.fullmatch(name)}
