"""The plug-in manager, with real modules and real entry points."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from installs import FILTER, install, on_path, write

from rlax_plugin.base.errors import PluginError
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.validation import validate
from rlax_plugin.ports import hookspecs
from rlax_plugin.ports.kinds import ALL, BY_NAME, Kind
from rlax_plugin.ports.manager import HOOKS, Manager, installed
from rlax_plugin.ports.observer import Observer
from rlax_plugin.testing.checking import contract_of

OBSERVER = """
    from rlax_plugin.api import hookimpl
    seen = []

    @hookimpl
    def rlax_on_step_end(step):
        seen.append(step)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with on_path(tmp_path):
        yield tmp_path


def rejection(*names: str) -> str:
    with pytest.raises(PluginError) as caught:
        Manager(names)
    return str(caught.value)


def test_hooks_are_read_from_the_specification() -> None:
    assert HOOKS["rlax_on_step_end"] == ("step", "metrics")
    assert HOOKS["rlax_register_gradient_term"] == HOOKS["rlax_register_rollout_engine"] == ()
    events = [f"rlax_on_{event}" for event in hookspecs.EVENTS]
    assert [kind.hook for kind in ALL] + events == list(HOOKS)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_a_kinds_entry_makes_its_hook_and_names_its_contract(kind: Kind) -> None:
    told = hookspecs.REGISTER[kind.hook].__doc__ or ""
    assert kind.part in told and kind.process in told and kind.config_keys[0] in told
    assert callable(contract_of(kind))


def test_every_kind_has_one_entry_and_a_config_of_its_usage_chooses_it() -> None:
    assert len(BY_NAME) == len(ALL)
    whole = {
        "prompt_source": {"name": "numbers"},
        "rewards": [{"name": "even"}],
        "rollouts": {"engine": {"name": "scripted"}},
    }
    for kind in ALL:
        given = yaml.safe_load(f"{{{kind.usage('mine')}}}")
        section = validate(RlaxSection, whole | given, "rlax")
        key = kind.config_keys[0].removeprefix("rlax.")
        chosen: Any = section
        for name in key.split("."):
            chosen = getattr(chosen, name)
        chosen = chosen[0] if isinstance(chosen, tuple) else chosen
        assert chosen == "mine" or chosen.name == "mine", kind


def test_only_listed_plugins_are_imported(folder: Path) -> None:
    install(folder, "tp_listed", FILTER % {"filter": "a"})
    install(folder, "tp_other", FILTER % {"filter": "b"})
    manager = Manager(["tp_listed"])
    assert "tp_listed" in sys.modules and "tp_other" not in sys.modules
    ((name, offers),) = manager.call("rlax_register_filter")
    assert (name, list(offers)) == ("tp_listed", ["a"])


def test_installed_lists_without_importing(folder: Path) -> None:
    install(folder, "tp_one", "raise SystemExit", distribution="Some-Dist", version="4.5")
    (found,) = [p for p in installed() if p.name == "tp_one"]
    assert (found.target, found.distribution, found.version) == ("tp_one", "Some-Dist", "4.5")
    assert "tp_one" not in sys.modules


def test_one_name_from_two_distributions_is_rejected(folder: Path) -> None:
    install(folder, "tp_twice", OBSERVER, target="tp_first", distribution="dist-a")
    install(folder, "tp_twice", OBSERVER, target="tp_second", distribution="dist-b")
    with pytest.raises(PluginError, match="dist-a and dist-b"):
        installed()


def test_a_plugin_may_be_a_module_or_an_instance(folder: Path) -> None:
    write(folder, "tp_module", OBSERVER)
    instance = """
        from rlax_plugin.api import hookimpl

        class Counter:
            def __init__(self):
                self.total = 0

            @property
            def broken(self):
                raise RuntimeError("properties are not looked at")

            @hookimpl
            def rlax_on_step_end(self, metrics, step):
                self.total += step + metrics["x"]

        counter = Counter()
    """
    install(folder, "tp_instance", instance, target="tp_holder:counter")
    manager = Manager(["tp_instance", "tp_module"])
    manager.hook.rlax_on_step_end(step=3, metrics={"x": 4})
    assert sys.modules["tp_module"].seen == [3]
    assert sys.modules["tp_holder"].counter.total == 7
    assert manager.origin("tp_instance").distribution == "dist-tp_instance"
    assert manager.origin("tp_module").distribution == ""


def test_unknown_plugin_names_the_nearest_one(folder: Path) -> None:
    install(folder, "tp_arithmetic", OBSERVER)
    message = rejection("tp_arithmetc")
    assert message.startswith("rlax.plugins = 'tp_arithmetc': no plug-in or module of this name")
    assert "did you mean 'tp_arithmetic'?" in message and "known: " in message
    assert "no plug-in or module" in rejection("tp_no_package.tp_module")
    assert "no plug-in or module" in rejection("tp arithmetic")


def test_a_file_in_the_list_of_plugins_is_told_how_it_is_named(folder: Path) -> None:
    write(folder, "tp_file", OBSERVER)
    for path, directory in (
        ("./tp_file.py", "."),
        ("tp_file.py", "."),
        ("../own parts/tp_file", "'../own parts'"),
        (str(folder / "tp_file.py"), str(folder)),
    ):
        message = rejection(path)
        assert message.startswith(f"rlax.plugins = {path!r}: is a path, but a plug-in is named by ")
        assert f"write 'tp_file', and set PYTHONPATH={directory} or install" in message
    assert "rlax.rewards: [{function: ./tp_file.py:NAME}]" in rejection("./tp_file.py")


def test_a_failing_import_is_told_with_its_cause_and_line(folder: Path) -> None:
    install(folder, "tp_entry", OBSERVER, target="tp_entry:nothing")
    write(folder, "tp_needs", "import os\nimport tp_not_installed\n")
    with pytest.raises(PluginError) as caught:
        Manager(["tp_needs"])
    assert "No module named 'tp_not_installed'" in str(caught.value)
    assert f"{folder / 'tp_needs.py'}:2" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    write(folder, "tp_raises", "1 / 0\n")
    assert "cannot be imported: ZeroDivisionError" in rejection("tp_raises")
    assert "has no attribute 'nothing'" in rejection("tp_entry")


def test_the_same_plugin_twice_is_rejected(folder: Path) -> None:
    install(folder, "tp-alias", OBSERVER, target="tp_aliased")
    assert "is listed twice" in rejection("tp_aliased", "tp_aliased")
    assert "is the same plug-in as 'tp-alias'" in rejection("tp-alias", "tp_aliased")


HEAD = "import pluggy\nfrom rlax_plugin.api import hookimpl\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "@hookimpl\ndef rlax_register_rewrd(): return {}",
            "unknown hook 'rlax_register_rewrd'; did you mean 'rlax_register_reward'?",
        ),
        (
            "def rlax_register_reward(): return {}",
            "rlax_register_reward has no @hookimpl (from rlax_plugin.api import hookimpl)",
        ),
        (
            "def rlax_register_rewrd(): return {}",
            "has no @hookimpl (from rlax_plugin.api import hookimpl), and is no hook; did you mean "
            "'rlax_register_reward'?",
        ),
        (
            "@pluggy.HookimplMarker('rlax')\ndef rlax_register_reward(): return {}",
            "is marked with the @hookimpl of project 'rlax': use the one from rlax_plugin",
        ),
        ("def other(): pass", "implements no hook; each one needs @hookimpl"),
        (
            "@hookimpl\ndef rlax_on_step_end(step, metrics=None): pass",
            "rlax_on_step_end gives 'metrics' a default: remove it",
        ),
        (
            "@hookimpl\ndef rlax_on_step_end(stepp): pass",
            "has no argument 'stepp'; did you mean 'step'? known: metrics, step",
        ),
        ("@hookimpl\ndef rlax_on_step_end(*args): pass", "must name its arguments; *args"),
        ("@hookimpl\ndef rlax_on_step_end(*, step): pass", "must take 'step' as an ordinary"),
        ("@hookimpl\ndef rlax_on_step_end(step): yield", "must be a plain function"),
        ("@hookimpl(tryfirst=True)\ndef rlax_on_step_end(step): pass", "is marked tryfirst"),
        ("@hookimpl(wrapper=True)\ndef rlax_on_step_end(step): yield", "is marked wrapper"),
    ],
)
def test_what_breaks_the_hook_contract(folder: Path, source: str, expected: str) -> None:
    write(folder, "tp_bad", HEAD + source)
    message = rejection("tp_bad")
    assert message.startswith("rlax.plugins = 'tp_bad': ")
    assert expected in message


def test_a_class_in_place_of_an_instance_is_rejected(folder: Path) -> None:
    source = """
        from rlax_plugin.api import hookimpl

        class Plugin:
            @hookimpl
            def rlax_on_step_end(self, step):
                pass
    """
    install(folder, "tp_class", source, target="tp_class:Plugin")
    assert "is the class Plugin: register an instance of it" in rejection("tp_class")


def test_a_failing_observer_is_named(folder: Path) -> None:
    write(folder, "tp_fine", OBSERVER)
    source = OBSERVER.replace("seen.append(step)", "raise KeyError('lost')")
    write(folder, "tp_fails", source)
    manager = Manager(["tp_fine", "tp_fails"])
    with pytest.raises(PluginError, match="plug-in 'tp_fails' failed in rlax_on_step_end") as info:
        manager.hook.rlax_on_step_end(step=1, metrics={})
    assert isinstance(info.value.__cause__, KeyError)
    with pytest.raises(AttributeError, match="did you mean 'rlax_on_step_end'"):
        manager.hook.rlax_on_stepend(step=1)


def test_an_observer_has_the_methods_and_arguments_of_the_hooks() -> None:
    for hook, specification in hookspecs.OBSERVE.items():
        method = inspect.signature(getattr(Observer(), hook.removeprefix("rlax_")))
        assert method == inspect.signature(specification), hook


def test_a_directory_that_is_not_installed_yet_is_named(folder: Path) -> None:
    """Of a new package, in whose parent directory the command runs."""
    (folder / "tp_new" / "src").mkdir(parents=True)
    assert f"is the directory {folder / 'tp_new'}, which has no __init__" in rejection("tp_new")
