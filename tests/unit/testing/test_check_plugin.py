"""``check_plugin``: broken plug-ins are told what to mend."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_plugins import BROKEN, FORMS
from command_line import rlax
from installs import FILTER, on_path, write
from processes import python_path

from rlax_plugin.base.errors import ConfigError, ContractError, PluginError
from rlax_plugin.testing import check_plugin
from rlax_plugin.testing.contracts import tracker


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with on_path(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_told_what_to_mend(folder: Path, name: str, monkeypatch) -> None:
    monkeypatch.setattr(tracker, "WRITTEN_S", 0.1)
    broken = BROKEN[name]
    write(folder, f"tb_{name}", broken.source)
    write(folder, "torch", "")  # what matters is that it is imported
    with pytest.raises((ContractError, PluginError)) as caught:
        check_plugin(f"tb_{name}")
    for phrase in broken.told:
        assert phrase in str(caught.value)
    if isinstance(caught.value, ContractError):
        for finding in caught.value.findings:
            assert finding.where.startswith(f"plug-in 'tb_{name}', rlax_")
            assert finding.expected and finding.found and finding.mend


def test_a_reward_may_see_the_group(folder: Path) -> None:
    """Those that see turns or are async are among the built-in ones."""
    write(folder, "tb_forms", FORMS)
    assert [one.name for one in check_plugin("tb_forms")] == ["best"]


def test_all_findings_of_all_parts_are_told(folder: Path) -> None:
    source = """
        from rlax_plugin.api import Extension, NoOptions, hookimpl

        class Filter:
            def __init__(self, answer):
                self.answer = answer

            def reject(self, group):
                return self.answer

        def extension(answer):
            return Extension(NoOptions, lambda config, context: Filter(answer))

        @hookimpl
        def rlax_register_filter():
            return {"bool": extension(True), "fine": extension("too easy"), "none": extension(""),
                    "unbuilt": Extension(NoOptions, lambda config, context: None)}
    """
    write(folder, "tb_filters", source)
    with pytest.raises(ContractError) as caught:
        check_plugin("tb_filters")
    found = {finding.where.split("[")[1]: finding.found for finding in caught.value.findings}
    assert found == {
        "'bool']": "for mixed rewards it returned True",
        "'none']": "for mixed rewards: '', of 0 characters",
        "'unbuilt']": "build returned None",
    }


def test_required_options_are_asked_for_and_given(folder: Path) -> None:
    filter = """
        from rlax_plugin.api import Extension, Section, hookimpl

        class Config(Section):
            most: float

            def reject(self, group):
                return None

        @hookimpl
        def rlax_register_filter():
            return {"narrow": Extension(Config, lambda config, context: config)}
    """
    write(folder, "tb_options", filter)
    with pytest.raises(ConfigError, match="must be given") as caught:
        check_plugin("tb_options")
    assert "options={'filter/narrow': {'most': ...}}" in str(caught.value)
    assert "rlax check-plugin tb_options --options filter/narrow.most=..." in str(caught.value)
    with pytest.raises(ConfigError, match=r"options\['filter/wide'\]: no such part.*filter/narrow"):
        check_plugin("tb_options", options={"filter/wide": {"most": 1.0}})
    (checked,) = check_plugin("tb_options", options={"filter/narrow": {"most": 1.0}})
    assert (checked.kind, checked.name) == ("filter", "narrow")

    assert rlax("check-plugin", "tb_options").exit_code == 2
    result = rlax("check-plugin", "tb_options", "--options", "filter/narrow.most=1.5")
    assert result.exit_code == 0 and "narrow" in result.stdout
    result = rlax("check-plugin", "tb_options", "--options", "narrow=1.5")
    assert result.exit_code == 2 and "must be KIND/NAME.KEY=VALUE" in result.stderr


def test_the_command_tells_what_holds_and_what_does_not(folder: Path) -> None:
    result = rlax("check-plugin", "rlax_curation")
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "mixed_outcome" in text and "the same group gets the same answer" in text

    write(folder, "tb_bad_filter", FILTER % {"filter": "narrow"})
    options = ("--options", "filter/narrow.high=1")
    result = rlax("check-plugin", "tb_bad_filter", *options)
    assert result.exit_code == 1 and "narrow" not in result.stdout
    assert "plug-in 'tb_bad_filter', rlax_register_filter['narrow']" in result.stderr
    assert "AttributeError: 'tuple' object has no attribute 'reject'" in result.stderr
    assert "to fix: " in result.stderr


BLOCKING = """
    import threading

    from rlax_plugin.api import Extension, NoOptions, hookimpl

    never = threading.Event()

    class Filter:
        def reject(self, group):
            return None

    class Silent(Filter):
        def reject(self, group):
            never.wait()

    def blocks(config, context):
        never.wait()

    @hookimpl
    def rlax_register_filter():
        return {"first": Extension(NoOptions, lambda config, context: Filter()),
                "silent": Extension(NoOptions, lambda config, context: Silent()),
                "stuck": Extension(NoOptions, blocks),
                "last": Extension(NoOptions, lambda config, context: Filter())}
"""


def test_parts_that_block_are_told_one_by_one_and_the_others_are_still_checked(
    folder: Path,
) -> None:
    write(folder, "tb_blocking", BLOCKING)
    for deadline_s in (1, 5, 25):
        told = []
        with pytest.raises((ContractError, PluginError)) as caught:
            check_plugin("tb_blocking", deadline_s=deadline_s, on_checked=told.append)
        # A machine that stalls may reach the deadline before the module is loaded, or before the
        # parts come to where they block.
        late = sum(bool(one.findings) for one in told)
        if late == str(caught.value).count("(never.wait())") == 2:
            break
    assert isinstance(caught.value, ContractError)
    known = {(one.kind, one.name): [finding.found for finding in one.findings] for one in told}
    assert [name for (_, name), found in known.items() if not found] == ["first", "last"]
    assert len(caught.value.findings) == 2
    (silent,) = known["filter", "silent"]
    assert "it blocks at tb_blocking.py:14 (never.wait())" in silent and "reject" in silent
    (stuck,) = known["filter", "stuck"]
    assert "it blocks at tb_blocking.py:17 (never.wait())" in stuck and "be built" in stuck


def test_a_module_that_never_ends_its_import_is_an_error(folder: Path) -> None:
    write(folder, "tb_asleep", "import threading\nthreading.Event().wait()")
    with pytest.raises(PluginError, match=r"not loaded within 1 s.*at tb_asleep.py:2"):
        check_plugin("tb_asleep", deadline_s=1)


def test_the_command_ends_although_threads_of_a_part_block(folder: Path) -> None:
    source = """
        import asyncio
        import threading

        from rlax_plugin.api import Extension, NoOptions, hookimpl

        def build(config, context):
            asyncio.run(asyncio.to_thread(threading.Event().wait))  # Python joins this thread

        @hookimpl
        def rlax_register_filter():
            return {"stuck": Extension(NoOptions, build)}
    """
    write(folder, "tb_joined", source)
    command = [sys.executable, "-m", "rlax_plugin", "check-plugin", "tb_joined", "--deadline"]
    environment = {**os.environ, "PYTHONPATH": python_path(folder)}
    for deadline_s in ("2", "10", "50"):
        ended = subprocess.run(
            [*command, deadline_s], env=environment, capture_output=True, text=True, timeout=200
        )
        if ended.returncode == 1:  # a machine that stalls may reach it while it imports the module
            break
    assert ended.returncode == 1
    assert "it blocks at tb_joined.py" in ended.stderr and "1 part does not fulfil" in ended.stderr
