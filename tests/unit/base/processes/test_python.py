"""Python child processes, and modules that lie in the working directory."""

import subprocess
from contextlib import closing

from planted import plant

from rlax_plugin.base.processes.limited import LimitedFunction
from rlax_plugin.base.processes.python import python_command


def test_a_child_imports_nothing_from_its_working_directory(tmp_path):
    trap = plant(tmp_path)
    command = python_command("-c", "import json, numpy, rlax_plugin")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not trap.exists()


def test_a_function_with_limits_finds_no_module_in_the_working_directory(tmp_path, monkeypatch):
    """Neither one that nothing else offers, such as an optional package of a library."""
    trap = plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    with closing(LimitedFunction("limited_tasks:does", cpu_s=60.0, wait_s=120.0)) as limited:
        assert limited("finds", "json")
        assert not limited("finds", "gmpy2")
    assert not trap.exists()
