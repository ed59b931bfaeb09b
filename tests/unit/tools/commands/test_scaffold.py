"""``rlax new-plugin``: what it writes is a package whose own test passes, for every kind."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import rlax
from processes import python_path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.ports.kinds import BY_NAME
from rlax_plugin.tools.commands.scaffold import write_package

ROOT = Path(__file__).parents[4]


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of every kind."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in BY_NAME:
        write_package(f"new_{kind}", kind, folder)
    return folder


def test_a_package_of_every_kind_passes_its_own_test(packages: Path) -> None:
    path = python_path(*(packages / f"new_{kind}" / "src" for kind in BY_NAME))
    tests = run("pytest", "-q", "-p", "no:cacheprovider", ".", cwd=packages, PYTHONPATH=path)
    assert f"{len(BY_NAME)} passed" in tests


def test_what_is_written_is_clean(packages: Path) -> None:
    config = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    assert "All checks passed" in run("ruff", "check", *config, ".", cwd=packages)
    assert "already formatted" in run("ruff", "format", "--check", *config, ".", cwd=packages)


@pytest.mark.parametrize("kind", BY_NAME)
def test_a_package_names_its_plugin(packages: Path, kind: str) -> None:
    name = f"new_{kind}"
    project = tomllib.loads((packages / name / "pyproject.toml").read_text())["project"]
    assert project["name"] == name.replace("_", "-")
    assert project["entry-points"]["rlax_plugin"] == {name: name}
    readme = (packages / name / "README.md").read_text()
    assert f"plugins: [{name}]" in readme and f"rlax check-plugin {name}" in readme


def test_the_command_says_what_to_do_next(tmp_path: Path) -> None:
    result = rlax("new-plugin", "my_filter", "--kind", "filter", "--directory", str(tmp_path))
    assert result.exit_code == 0
    assert (tmp_path / "my_filter/src/my_filter/__init__.py").exists()
    for said in ("python -m pytest", "rlax check-plugin my_filter", "filters: [{name: my_filter}]"):
        assert said in result.stdout
    again = rlax("new-plugin", "my_filter", "--kind", "filter", "--directory", str(tmp_path))
    assert again.exit_code == 2 and "exists: remove it" in again.stderr


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("length-reward", "reward", "must be a module's name.*such as length_reward"),
        ("Reward", "reward", "such as reward"),
        ("3rd", "reward", "such as rd"),
        ("import", "reward", "is a Python keyword"),
        ("json", "reward", "is also a module of Python's standard library"),
        ("rlax_curation", "reward", "is also an installed module"),
        ("mine", "rewards", "no such kind; did you mean 'reward'?.*known: .*observer"),
    ],
)
def test_what_cannot_be_is_rejected(tmp_path: Path, name: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_package(name, kind, tmp_path)
    assert not list(tmp_path.iterdir())
