"""Modules are unavailable in one thread, for a while, and only if they were not loaded before."""

import importlib
import sys
import threading

import pytest

from maxtext_overrides.upstream.lean_imports import unavailable

MODULE = "this"  # of the standard library, prints when imported; nobody has it loaded


@pytest.fixture(autouse=True)
def not_loaded():
    sys.modules.pop(MODULE, None)
    yield
    sys.modules.pop(MODULE, None)


def test_import_fails_inside_and_works_after(capsys):
    with unavailable(MODULE), pytest.raises(ModuleNotFoundError, match="not imported here"):
        importlib.import_module(MODULE)
    assert MODULE not in sys.modules
    importlib.import_module(MODULE)
    assert "Zen" in capsys.readouterr().out


def test_other_threads_import_as_ever(capsys):
    with unavailable(MODULE):
        thread = threading.Thread(target=importlib.import_module, args=(MODULE,))
        thread.start()
        thread.join(60)
    assert "Zen" in capsys.readouterr().out


def test_what_is_loaded_stays_available():
    with unavailable("json"):
        assert importlib.import_module("json").dumps([1]) == "[1]"
