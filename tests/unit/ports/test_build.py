"""Choosing parts by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installs import FILTER, PARTS, install, on_path, write

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.build import Registry, build_part, built_in_plugins, registry_for
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import ResolvedConfig, resolved
from rlax_plugin.ports.manager import Manager
from rlax_plugin.ports.protocols import BuildContext, CheckResult
from rlax_plugin.run.controller.chosen import Builder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with on_path(tmp_path):
        write(tmp_path, "tb_parts", PARTS)
        yield tmp_path


def section(**changes: Any) -> RlaxSection:
    values: dict[str, Any] = {
        "plugins": ["tb_parts"],
        "prompt_source": {"name": "source"},
        "rewards": [{"name": "right"}],
        "rollouts": {"engine": {"name": "engine"}},
        "weights": {"store": {"name": "store"}},
        "launcher": {"name": "launch"},
        "trainer": {"name": "train"},
    }
    return RlaxSection.model_validate(values | changes)


def validated(**changes: Any) -> Registry:
    chosen = section(**changes)
    registry = Registry(Manager(chosen.plugins), built_in_plugins(chosen.plugins))
    registry.validate(chosen)
    return registry


def problem(**changes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validated(**changes)
    return caught.value


def context(**changes: Any) -> BuildContext:
    return BuildContext(run_dir=Path(), seed=0, section=section(**changes))


def test_every_choice_of_a_config_is_looked_at(folder: Path) -> None:
    registry = validated()
    chosen = section(
        curation={"filters": [{"name": "mixed_outcome"}]}, trackers=[{"name": "track", "slots": 2}]
    )
    assert [(use.key, use.kind, use.choice.name) for use in registry.uses(chosen)] == [
        ("rlax.prompt_source", "prompt_source", "source"),
        ("rlax.rewards.0", "reward", "right"),
        ("rlax.environment", "environment", "single_turn"),
        ("rlax.rollouts.engine", "rollout_engine", "engine"),
        ("rlax.curation.sampler", "sampler", "shuffled"),
        ("rlax.curation.filters.0", "filter", "mixed_outcome"),
        ("rlax.objective.preset", "objective", "grpo"),
        ("rlax.objective.aggregation", "aggregation", "sequence_mean"),
        ("rlax.objective.importance_weight", "importance_weight", "one"),
        ("rlax.objective.advantage", "advantage", "group_normalised"),
        ("rlax.objective.grad_1", "gradient_term", "clipped_ratio"),
        ("rlax.objective.grad_2", "gradient_term", "none"),
        ("rlax.weights.store", "weight_store", "store"),
        ("rlax.launcher", "launcher", "launch"),
        ("rlax.trackers.0", "tracker", "track"),
        ("rlax.trainer", "trainer", "train"),
    ]
    corrected = section(objective={"preset": "aipo", "corrections": [{"name": "icepop"}]})
    uses = {use.key: use.choice.name for use in registry.uses(corrected)}
    assert uses["rlax.objective.importance_weight"] == "truncated"
    assert uses["rlax.objective.corrections.0"] == "icepop"


def test_an_unknown_name_names_key_nearest_match_and_alternatives(folder: Path) -> None:
    error = problem(rewards=[{"name": "right"}, {"name": "rihgt"}])
    assert (error.key, error.value) == ("rlax.rewards.1.name", "rihgt")
    assert "did you mean 'right'? known: exact_answer, " in error.reason
    error = problem(objective={"preset": "grop"})
    assert error.key == "rlax.objective.preset"
    assert "did you mean 'grpo'? known: aipo, areal/grpo, awr, " in error.reason
    error = problem(objective={"preset": "PPO"})  # the case of letters does not count
    assert "did you mean 'ppo'? known: aipo, areal/grpo, awr, " in error.reason
    error = problem(objective={"grad_2": {"name": "clip"}})
    assert error.key == "rlax.objective.grad_2.name" and "clipped_ratio" in error.reason


def test_options_are_validated_under_their_full_key(folder: Path) -> None:
    error = problem(rollouts={"engine": {"name": "engine", "slot": 3}})
    assert (error.key, error.value) == ("rlax.rollouts.engine.slot", 3)
    assert error.reason == "unknown key; did you mean 'slots'? known: slots"
    error = problem(rewards=[{"name": "right", "wieght": 3}])
    assert error.key == "rlax.rewards.0.wieght" and "did you mean 'weight'?" in error.reason
    error = problem(launcher={"name": "launch", "slots": "3"})
    assert str(error) == "rlax.launcher.slots = '3': must be a whole number (default 4)"
    error = problem(objective={"grad_1": {"name": "clipped_ratio", "low": -1}})
    assert (error.key, error.value) == ("rlax.objective.grad_1.low", -1)
    assert "must be greater than 0 (ratios below 1 - low are clipped; default 0.2)" in error.reason


def test_a_plugin_validators_own_error_gets_the_full_key(folder: Path) -> None:
    error = problem(curation={"sampler": {"name": "greso", "easy": 0.01}})
    assert error.key == "rlax.curation.sampler.easy" and error.value == 0.01


def test_a_name_of_an_installed_but_unlisted_plugin_says_which(folder: Path) -> None:
    install(folder, "tb_filters", FILTER % {"filter": "narrow"})
    install(folder, "tb_broken", "raise ImportError('cannot be recommended')")
    error = problem(curation={"filters": [{"name": "narrow", "high": 1.0}]})
    assert str(error) == (
        "rlax.curation.filters.0.name = 'narrow': plug-in 'tb_filters' offers this filter, but is "
        "not listed: add it to rlax.plugins"
    )
    error = problem(curation={"filters": [{"name": "tb_filters:narrow", "high": 1.0}]})
    assert "plug-in 'tb_filters' offers this filter, but is not listed" in error.reason
    plugins = ["tb_parts", "tb_filters"]
    error = problem(plugins=plugins, curation={"filters": [{"name": "narrow"}]})
    assert str(error) == "rlax.curation.filters.0.high: must be given"


def test_a_name_that_a_built_in_and_a_listed_plugin_offer_needs_the_plugins(folder: Path) -> None:
    """None of the two takes the other's place, in whatever order they are known."""
    write(folder, "tb_second", FILTER % {"filter": "mixed_outcome"})
    for plugins in (["tb_parts", "tb_second"], ["tb_second", "tb_parts", "rlax_curation"]):
        error = problem(plugins=plugins, curation={"filters": [{"name": "mixed_outcome"}]})
        assert (error.key, error.value) == ("rlax.curation.filters.0.name", "mixed_outcome")
        spelled = {"rlax_curation:mixed_outcome", "tb_second:mixed_outcome"}
        assert set(error.reason.partition("write ")[2].split(" or ")) == spelled
        chosen = {"filters": [{"name": "tb_second:mixed_outcome", "high": 1}]}
        registry = validated(plugins=plugins, curation=chosen)
        built = context(plugins=plugins, curation=chosen)
        own = registry.part("filter", built.section.curation.filters[0], "k", built)
        assert own == ("built", 0.1)
        assert (
            registry.offer("filter", "rlax_curation:mixed_outcome", "k").plugin == "rlax_curation"
        )
    for plugin in ("tb_third", "tb_fourth"):
        write(folder, plugin, FILTER % {"filter": "narrow"})
    two = ["tb_parts", "tb_third", "tb_fourth"]
    error = problem(plugins=two, curation={"filters": [{"name": "narrow"}]})
    assert error.reason.endswith("write tb_third:narrow or tb_fourth:narrow")
    error = problem(curation={"filters": [{"name": "tb_parts:mixed_outcome"}]})
    assert error.reason.startswith("no plug-in offers this filter; did you mean 'mixed_outcome'?")


def test_a_preset_keeps_the_parts_that_its_author_meant(folder: Path) -> None:
    """Whoever else offers parts of their names; and options of one are not given to the other."""
    source = """
        from rlax_plugin.api import Extension, Section, hookimpl

        class Mine(Section):
            low: float = 0.5

        @hookimpl
        def rlax_register_importance_weight():
            return {"truncated": Extension(Mine, lambda config, context: config)}
    """
    write(folder, "tb_weight", source)
    plugins = ["tb_parts", "tb_weight"]

    def weight(**objective: Any) -> tuple[str, dict[str, Any]]:
        chosen = section(plugins=plugins, objective={"preset": "aipo", **objective})
        registry = registry_for(chosen)
        uses = {use.key: use for use in registry.uses(chosen)}
        use = uses["rlax.objective.importance_weight"]
        offer = registry.offer(use.kind, use.choice.name, use.key)
        registry.options(use.kind, use.choice, use.key)
        return offer.plugin, use.choice.options

    of_preset = weight()
    assert of_preset[0] == "rlax_objectives" and "cap" in of_preset[1]
    named = weight(importance_weight={"name": "rlax_objectives:truncated"})
    assert named == of_preset
    assert weight(importance_weight={"name": "tb_weight:truncated"}) == ("tb_weight", {})
    with pytest.raises(ConfigError, match="several plug-ins offer this importance weight"):
        weight(importance_weight={"name": "truncated"})


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("None", "returned None, expected {name: Extension}"),
        ("[1]", r"returned \[1\], expected {name: Extension}"),
        ("{'a': 1}", r"\['a'\] is 1, expected an Extension"),
        ("{3: Extension(NoOptions, build)}", "a name must be text"),
        ("{'a:b': Extension(NoOptions, build)}", "a name must be text without a colon"),
        (r"{'a\u200b': Extension(NoOptions, build)}", r"the name has U\+200B \(ZERO WIDTH SPACE"),
        ("{'a': Extension(dict, build)}", "config_class is <class 'dict'>, expected a subclass"),
        ("{'a': Extension(Lax, build)}", "Lax accepts unknown keys"),
        ("{'a': Extension(Named, build)}", "Named has a field 'name'"),
        ("{'a': Extension(NoOptions, 'build')}", r"build must be a function \(config, context\)"),
        ("{'a': Extension(NoOptions, lambda config: 1)}", "build must be a function"),
        ("{'a': Extension(NoOptions, build, lambda: 1)}", "check must be a function"),
        ("{'a': Extension(NoOptions, build, check_start=1)}", "check_start must be a function"),
        ("1 / 0", "failed in rlax_register_filter: ZeroDivisionError"),
    ],
)
def test_wrong_registrations_name_plugin_and_hook(
    folder: Path, returned: str, expected: str
) -> None:
    source = f"""
        from pydantic import BaseModel
        from rlax_plugin.api import Extension, NoOptions, Section, hookimpl
        def build(config, context): return 1
        class Lax(BaseModel): a: int = 1
        class Named(Section): name: str
        @hookimpl
        def rlax_register_filter(): return {returned}
    """
    write(folder, "tb_wrong", source)
    with pytest.raises(PluginError, match=expected) as caught:
        Registry(Manager(["tb_wrong"]))
    assert "'tb_wrong'" in str(caught.value) and "rlax_register_filter" in str(caught.value)


def test_parts_are_built_with_validated_options_and_may_build_others(folder: Path) -> None:
    registry = validated()
    choice, key = Choice.model_validate({"name": "track", "slots": 9}), "rlax.trackers.0"
    assert registry.part("tracker", choice, key, context()) == ("track", 9)
    assert build_part("tracker", choice, key, context()) == ("track", 9)
    built = registry.part("trainer", Choice(name="train"), "rlax.trainer", context())
    assert built.reward == ("right", 4)


def test_a_failing_build_says_whose_it_is(folder: Path) -> None:
    source = """
        from rlax_plugin.api import Extension, NoOptions, hookimpl
        @hookimpl
        def rlax_register_filter():
            return {"broken": Extension(NoOptions, lambda config, context: 1 / 0)}
    """
    write(folder, "tb_fails", source)
    registry = Registry(Manager(["tb_fails"]))
    with pytest.raises(ZeroDivisionError) as caught:
        registry.part("filter", Choice(name="broken"), "rlax.curation.filters.0", context())
    assert caught.value.__notes__ == [
        "while plug-in 'tb_fails' built rlax.curation.filters.0 = 'broken'"
    ]


def test_a_preset_must_be_a_preset(folder: Path) -> None:
    source = """
        from rlax_plugin.api import Extension, NoOptions, hookimpl
        @hookimpl
        def rlax_register_objective():
            return {"mine": Extension(NoOptions, lambda config, context: "grpo")}
    """
    write(folder, "tb_preset", source)
    with pytest.raises(PluginError, match="'tb_preset': objective 'mine' built 'grpo'"):
        validated(
            plugins=["tb_parts", "rlax_objectives", "rlax_curation", "tb_preset"],
            objective={"preset": "mine"},
        )


def test_check_runs_what_the_parts_offer(folder: Path) -> None:
    registry = validated()
    chosen = section()
    assert registry.check(chosen, context()) == {"rlax.trainer": CheckResult()}
    bad = BuildContext(run_dir=Path(), seed=0, section=chosen, config=ResolvedConfig(chosen))
    with pytest.raises(ConfigError, match="steps = 'config': must be none"):
        registry.check(chosen, bad)


def test_one_registry_per_list_of_plugins(folder: Path) -> None:
    assert registry_for(section()) is registry_for(section(seed=7))
    plugins = ["rlax_curation", "rlax_objectives", "tb_parts"]
    assert registry_for(section(plugins=plugins)) is not registry_for(section())


def test_a_part_without_the_base_class_is_refused(folder: Path) -> None:
    text = (
        r"plug-in 'tb_parts': rlax\.launcher = 'launch' built .+, expected an object of a class "
        r"that derives from rlax_plugin\.api\.Launcher"
    )
    with pytest.raises(PluginError, match=text):
        validated().part("launcher", section().launcher, "rlax.launcher", context())


ASKS = """
    from rlax_plugin.api import (
        CheckResult, ConfigError, Environment, Extension, NoOptions, Outcome, hookimpl
    )

    class Asks(Environment):
        def __init__(self, options, context):
            self.turns = context.section.episodes.max_turns

        async def play(self, prompt, session):
            return Outcome()

    def check(options, context):
        turns = context.section.episodes.max_turns
        if turns > 9:
            raise ConfigError("rlax.episodes.max_turns", turns, "must be at most 9")
        return CheckResult(warnings=[("rlax.episodes.max_turns", f"is {turns}")])

    @hookimpl
    def rlax_register_environment():
        return {"asks": Extension(NoOptions, Asks, check, check_start=check)}
"""


def test_an_environment_is_built_and_checked_with_the_keys_of_each_that_inherits_it(
    folder: Path,
) -> None:
    write(folder, "tb_asks", ASKS)

    def chosen(turns: int) -> RlaxSection:
        source, one = {"name": "numbers"}, {"name": "single_turn"}
        own = {
            "a": {"prompt_source": source, "environment": one},
            "b": {"prompt_source": source},
            "c": {"prompt_source": source, "episodes": {"max_turns": turns}},
        }
        plugins = ["rlax_plugin.testing", "tb_asks"]
        common = {"rewards": [{"name": "even"}], "environment": {"name": "asks"}}
        content = common | {"environments": own, "plugins": plugins, "episodes": {"max_turns": 3}}
        content |= {"trainer": {"name": "bigram"}, "rollouts": {"engine": {"name": "scripted"}}}
        return resolved({"rlax": content}).section

    section = chosen(7)
    registry, outside = registry_for(section), BuildContext.outside_run(section)
    built = Builder(registry, outside).environments()
    assert (built["b"].turns, built["c"].turns) == (3, 7)
    own_key = "rlax.environments.c.episodes.max_turns"
    warnings = [("rlax.episodes.max_turns", "is 3"), (own_key, "is 7")]
    assert registry.check_start(section, outside) == warnings
    found = registry.check(section, outside)
    of_both = ("rlax.environment", "rlax.environment (c)")
    assert [w for key in of_both for w in found[key].warnings] == warnings
    with pytest.raises(ConfigError, match="must be at most 9") as caught:
        registry.check_start(chosen(10), outside)
    assert caught.value.key == own_key
