"""``check_plugin``: built-ins keep their contracts, and broken plug-ins are told what to mend."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_answers import ANSWERS
from broken_objectives import OBJECTIVES
from broken_plugins import BROKEN
from broken_rewards import FORMS, REWARDS
from command_line import rlax
from hostile_server import serving
from installs import FILTER, on_path, write

from rlax_plugin.build import Registry
from rlax_plugin.errors import ConfigError, ContractError, PluginError
from rlax_plugin.ports.kinds import ALL
from rlax_plugin.ports.manager import Manager
from rlax_plugin.testing import check_plugin, checking
from rlax_plugin.testing.contracts import tracker

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
BUILT_IN = ("rlax_plugin.testing", *PROJECT["entry-points"]["rlax_plugin"])
DATA_SETS: dict[str, dict[str, object]] = {
    "prompt_source/hf": {"dataset": "x"},
    "prompt_source/jsonl": {"path": "x"},
    "prompt_source/mixture": {"sources": {"a": {"name": "jsonl", "path": "x"}}},
    "prompt_source/parquet": {"path": "x"},
    "prompt_source/reasoning_gym": {"tasks": {"leg_counting": {}}},
    "prompt_source/tfds": {"dataset": "x"},
}
SMALL = {"train_problems": 30, "test_problems": 20, "validation_problems": 20}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with on_path(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Of which the verifier and the judge ask for a reward."""
    verdict = {"reward": 1.0, "choices": [{"message": {"content": "Score: 10"}}]}
    with serving(lambda asked: asked.json(verdict)) as found:
        yield found.url


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_ins_keep_their_contracts(name: str, tmp_path: Path, server: str) -> None:
    slow = {"flush_s": 45.0}  # to import
    options = {
        "rlax_arithmetic": {"prompt_source/arithmetic": {"data_dir": str(tmp_path), **SMALL}},
        "rlax_datasets": DATA_SETS,
        "rlax_http": {
            "reward/http_verifier": {"url": server},
            "reward/llm_judge": {"base_url": server, "model": "m"},
        },
        # Its database takes seconds to set up, and has tests of its own.
        "rlax_mlflow": {"tracker/mlflow": {"tracking_uri": (tmp_path / "mlflow").as_uri(), **slow}},
        "rlax_rewards": {"reward/format": {"pattern": ".*"}},
        "rlax_tensorboard": {"tracker/tensorboard": slow},
        "rlax_wandb": {"tracker/wandb": {"mode": "offline", **slow}},
    }
    checked = check_plugin(name, options=options.get(name))
    for one in checked:
        assert one.plugin == name and bool(one.rules) != bool(one.note)
    needs_model = {one.name for one in checked if one.note}
    needing = {"jetstream", "maxtext", "number_tasks", "reasoning_gym"}
    needing |= {one.partition("/")[2] for one in DATA_SETS} if name == "rlax_datasets" else set()
    assert needs_model == needing & {one.name for one in checked}


def test_there_is_a_built_in_of_every_kind_that_a_run_needs() -> None:
    """Of the others docs/plugin_hooks.md has an example, which its own test runs."""
    offers = Registry(Manager(BUILT_IN)).offers
    needed = [kind.name for kind in ALL if kind.toy or not kind.places[0].endswith("[]")]
    assert len(needed) >= 12 and [kind for kind in needed if not offers[kind]] == []


@pytest.mark.parametrize("name", BROKEN | ANSWERS | OBJECTIVES | REWARDS)
def test_a_broken_plugin_is_told_what_to_mend(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "WRITTEN_S", 0.1)
    broken = (BROKEN | ANSWERS | OBJECTIVES | REWARDS)[name]
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


def test_a_reward_may_see_the_group_or_turns_and_be_async(folder: Path) -> None:
    write(folder, "tb_forms", FORMS)
    checked = check_plugin("tb_forms")
    assert [one.name for one in checked] == ["best", "judge", "turns"]
    waits = "an async reward lets others run while it waits"
    assert [waits in one.rules for one in checked] == [False, True, False]


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


def test_the_command_shows_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = checking.Checked("p", "aggregation", "a", ("returns a number per token: [rows, length]",))
    monkeypatch.setattr(checking, "check_plugin", lambda *_, **__: (one,))
    assert "[rows, length]" in rlax("check-plugin", "p").stdout.replace("\n", "")


def test_the_command_tells_what_holds_and_what_does_not(folder: Path) -> None:
    result = rlax("check-plugin", "rlax_curation")
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "mixed_outcome" in text and "the same group gets the same answer" in text

    write(folder, "tb_bad_filter", FILTER % {"filter": "narrow"})
    options = ("--options", "filter/narrow.high=1")
    result = rlax("check-plugin", "tb_bad_filter", *options)
    assert result.exit_code == 1 and result.stdout == ""
    assert "plug-in 'tb_bad_filter', rlax_register_filter['narrow']" in result.stderr
    assert "AttributeError: 'tuple' object has no attribute 'reject'" in result.stderr
    assert "to fix: " in result.stderr
