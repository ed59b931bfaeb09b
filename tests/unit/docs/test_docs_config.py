"""docs/config.md is the reference of the config classes; ``rlax explain`` finds things in it."""

from typing import Any

import pytest
from documents import read
from typer.testing import CliRunner, Result

from rlax_plugin.base.text.secrets import hidden
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection, Section
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.kinds import ALL, choose
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands import explain, reference

SAMPLERS = {
    "learnability": ("candidates", "floor", "exponent"),
    "band": ("candidates", "low", "high", "confidence"),
    "greso": ("easy", "hard", "target_easy", "target_hard", "step", "minimum", "window"),
}


def rlax(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


def test_the_page_is_that_of_the_code() -> None:
    result = rlax("--markdown", "config")
    assert result.exit_code == 0
    assert result.stdout == read("config.md"), "rlax explain --markdown config > docs/config.md"
    assert hidden(result.stdout) == result.stdout  # as the streams of a command write it
    assert "known: config, objectives" in rlax("--markdown", "confg").stderr


def test_every_key_and_option_says_what_it_means() -> None:
    keys = [key for section in reference.sections() for key in section.keys]
    keys += [key for _, part in reference.parts() for key in part.keys]
    assert len(keys) > 120
    assert [key.key for key in keys if not key.meaning] == []
    assert all(section.text for section in reference.sections())


def test_every_key_of_the_class_is_there() -> None:
    """A section made of every default has exactly the keys of the reference."""
    given = {"prompt_source": {"name": "p"}, "rewards": [{"name": "r"}]}
    own = {"prompt_source": {"name": "p"}, "objective": {"overlong": {}}}
    several = validate(RlaxSection, {**given, "environments": {reference.NAME: own}}, "rlax")
    given["evaluation"] = {"sets": {reference.NAME: {}}}
    given["curation"] = {"stages": [{"weights": {"a": 1}}]}
    given["objective"] = {"kl": {"adaptive": {"target": 1.0}}, "guidance": {}}
    section = validate(RlaxSection, given, "rlax")

    def leaves(value: Section, key: str) -> set[str]:
        found = set()
        for name in type(value).model_fields:
            inner, place = getattr(value, name), f"{key}.{name}"
            if isinstance(inner, Section):
                found |= leaves(inner, place)
                if type(value).model_fields[name].default is None:  # it may be null
                    found.add(place)
            else:
                found.add(place)
                if isinstance(inner, dict):
                    named = {f"{place}.{name}": item for name, item in inner.items()}
                else:
                    named = {place: inner[0]} if isinstance(inner, tuple) and inner else {}
                for where, item in named.items():
                    found |= leaves(item, where) if isinstance(item, Section) else set()
        return found

    assert leaves(section, "rlax") | leaves(several, "rlax") == {
        k.key for s in reference.sections() for k in s.keys
    }


def test_every_place_of_a_part_has_its_kind() -> None:
    listed = {key.key: key.kind for s in reference.sections() for key in s.keys if key.kind}
    assert listed == reference.PARTS
    named = [k.key for s in reference.sections() for k in s.keys if k.type.startswith("part")]
    assert set(named) <= set(listed)
    # The same kinds under which ``build`` looks the parts of a config up.
    found = {}
    one_row = {"max_trajectories": 1}  # as a selection needs it
    # A run has either.
    for left_out in (("environments.",), ("evaluation.sets.", "curation.selection")):
        content: dict[str, Any] = {"plugins": ["rlax_plugin.testing"], "episodes": one_row}
        for kind in ALL:
            for place in kind.places:
                has_defaults = kind.name in ("objective", "gradient_term")  # which exist
                if not has_defaults and not place.startswith(left_out):
                    choose(content, place, {"name": "x"})
        section = validate(RlaxSection, content, "rlax")
        uses = registry_for(section).uses(section)
        found |= {use.key.removesuffix(".0"): use.kind for use in uses}
    assert found == reference.PARTS


@pytest.mark.parametrize(
    ("wanted", "titles", "keys"),
    [
        ("rlax.rollouts.group_size", ["rlax.rollouts"], ["rlax.rollouts.group_size"]),
        (
            "objective.kl",
            ["rlax.objective.kl", "rlax.objective.kl.adaptive"],
            [
                *("coefficient", "adaptive", "estimator", "placement"),
                *("gradient", "times", "weighted", "aggregation", "clamp_log_ratio", "clamp"),
                *("target", "horizon", "per"),
            ],
        ),
        ("rlax.rewards.0.cost", ["reward length"], ["cost"]),
        ("rlax.trainer.warm_start.steps", ["trainer maxtext"], ["warm_start.steps"]),
        (
            "sampler",
            ["rlax.curation", "sampler shuffled", *(f"sampler {name}" for name in SAMPLERS)],
            ["rlax.curation.sampler", *(key for keys in SAMPLERS.values() for key in keys)],
        ),
    ],
)
def test_finds_sections_keys_and_options(wanted: str, titles: list[str], keys: list[str]) -> None:
    found = explain.find(wanted).blocks
    assert [block.title for block in found] == titles
    listed = [key.key for block in found for key in block.keys]
    assert [key.rsplit(".", 1)[-1] for key in listed] == [key.rsplit(".", 1)[-1] for key in keys]
    assert all(key in listed for key in keys if key.startswith("rlax"))


def test_a_name_with_several_meanings_shows_all_of_them() -> None:
    staleness = explain.find("staleness")
    assert [block.title for block in staleness.blocks] == ["rlax.staleness"]
    assert "staleness/max" in [metric.name for metric in staleness.metrics]
    both = explain.find("reference")  # a section, and a signal
    assert {"rlax.objective.reference", "signal reference"} <= {b.title for b in both.blocks}
    text = rlax("staleness").stdout
    assert "reload_every" in text and "staleness/max" in text


def test_a_kind_shows_where_its_parts_are_chosen_and_all_of_them() -> None:
    titles = [block.title for block in explain.find("rollout_engine").blocks]
    engines = [f"rollout engine {name}" for name in ("jetstream", "rast", "vllm", "scripted")]
    assert titles == ["rlax.rollouts", *engines]
    places, grpo = explain.find("preset").blocks[:2], explain.find("preset").blocks[2]
    assert [one.title for one in places] == ["rlax.objective", "rlax.environments.NAME.objective"]
    assert grpo.title == "objective grpo" and "1/(N len) sum min(r A" in grpo.text


def test_a_misspelt_key_is_told_its_nearest_match() -> None:
    result = rlax("rlax.rolouts.group_siz")
    assert result.exit_code == 2 and result.stdout == ""
    assert "did you mean 'rlax.rollouts.group_size' or " in result.stderr
    assert "did you mean 'rlax.weights' or " in rlax("rlax.wieghts").stderr
    assert "'grpo'" in rlax("grop").stderr
