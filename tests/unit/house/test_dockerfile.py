"""The Dockerfile is linted, not built; and it copies and installs what a process needs."""

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from documents import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
LINTER = shutil.which("hadolint", path=sysconfig.get_path("scripts"))


def findings(path: Path) -> list[dict[str, Any]]:
    assert LINTER, "install the extra dev"
    command = [LINTER, "--no-color", "--format", "json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


def test_the_linter_finds_nothing() -> None:
    assert findings(ROOT / "Dockerfile") == []


def test_the_linter_finds_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILE.replace("FROM python:3.12-slim-bookworm", "FROM python"))
    assert [one["code"] for one in findings(bad)] == ["DL3006"]


def test_processes_run_as_a_user_that_the_image_has() -> None:
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert f"useradd --uid {user} " in DOCKERFILE


def test_everything_is_compiled_and_comes_from_the_lock() -> None:
    installs = re.findall(r"uv pip install ([^\\&;\n]*)", DOCKERFILE)
    assert len(installs) == 3
    for install in installs:
        # Of this project itself nothing is copied, and `compileall` compiles it.
        assert "requirements.lock" in install or "--no-deps" in install
        assert "--compile-bytecode" in install or "--editable ." in install
    assert "compileall -q rlax_plugin plugins maxtext_overrides" in DOCKERFILE


def test_the_context_has_what_the_image_needs() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines and all((ROOT / name).exists() for name in kept)
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.findall(r'"([\w]+)"', re.findall(r"^packages = \[(.*)\]", project, re.M)[0])
    assert {*packages, "pyproject.toml", "requirements.lock", "README.md"} <= kept
