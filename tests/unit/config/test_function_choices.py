"""The key ``function`` of rewards and filters: what it means, and what no config may say."""

from pathlib import Path

import pytest

from rlax_plugin.base.errors import ConfigError, UnknownKeyError
from rlax_plugin.build import registry_for
from rlax_plugin.config import FUNCTION, RlaxSection
from rlax_plugin.config.handing import for_worker, of_bytes, to_bytes
from rlax_plugin.config.identity import config_hash, sample_hash
from rlax_plugin.config.loading import resolve
from rlax_plugin.config.validation import validate

TWO = [{"function": "rewards.py:correct", "weight": 0.5}, {"name": "even"}]


def section(rewards: list[object], filters: tuple[object, ...] = ()) -> RlaxSection:
    plugins = ["rlax_plugin.testing"]
    content = {"plugins": plugins, "prompt_source": {"name": "numbers"}, "rewards": rewards}
    return validate(RlaxSection, {**content, "curation": {"filters": filters}}, "rlax")


def wrong(rewards: list[object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        section(rewards)
    return caught.value


def test_a_function_is_a_choice_with_its_own_name() -> None:
    found = section(TWO, ({"function": "f/filters.py:short", "label": "brief"},))
    first, second = found.rewards
    assert (first.name, first.part, first.weight) == ("correct", FUNCTION, 0.5)
    assert (second.name, second.part, second.options) == ("even", "even", {})
    assert str(first) == "0.5 * correct"
    (only,) = found.curation.filters
    assert (only.name, only.function) == ("brief", "f/filters.py:short")
    shown = found.model_dump(mode="json")
    assert shown["rewards"] == [TWO[0], {"name": "even", "weight": 1.0}]
    assert RlaxSection.model_validate(shown) == found


@pytest.mark.parametrize("weight", [1e300, -1e7, {"from": 1.0, "to": 1e38, "steps": 3}])
def test_a_weight_beyond_float32_is_refused_by_its_key(weight: object) -> None:
    error = wrong([{"name": "even"}, {"name": "odd", "weight": weight}])
    assert error.key.startswith("rlax.rewards.1.weight") and "must be" in error.reason
    assert section([{"name": "even", "weight": -1e6}]).rewards[0].weight == -1e6


def test_what_no_entry_may_say() -> None:
    both = wrong([{"function": "a.py:f", "name": "f"}])
    assert both.key == "rlax.rewards.0" and "leave one of name and function out" in both.reason
    label = wrong([{"function": "a.py:f", "label": "x y"}])
    assert "has the label 'x y', which must be letters, digits and _" in label.reason
    twice = wrong([{"function": "a.py:f"}, {"function": "b.py:f"}])
    assert twice.key == "rlax.rewards.1.function"
    assert "such as {function: b.py:f, label: f_2}" in twice.reason
    part = wrong([{"function": "a.py:even"}, {"name": "even"}])
    assert part.key == "rlax.rewards.0.function"
    empty = wrong([{"function": ""}])
    assert "names no function: write FILE.py:NAME" in empty.reason
    lone = wrong([{"function": "rewards.py"}])
    assert (lone.key, lone.value) == ("rlax.rewards.0.function", "rewards.py")
    unknown = section([{"function": "a.py:f", "wieght": 2}])
    with pytest.raises(UnknownKeyError) as caught:
        registry_for(unknown).validate(unknown)
    assert caught.value.key == "rlax.rewards.0.wieght"


def test_rewards_of_one_name_have_labels_which_are_no_options() -> None:
    content = [{"name": "even"}, {"name": "even", "label": "recorded", "weight": 0.0}]
    found = section(content)
    assert [one.metric_name for one in found.rewards] == ["even", "recorded"]
    assert str(found.rewards[1]) == "0 * recorded" and found.rewards[1].options == {}
    shown = found.model_dump(mode="json")
    assert shown["rewards"] == [{"name": "even", "weight": 1.0}, content[1]]
    assert RlaxSection.model_validate(shown) == found
    twice = wrong([{"name": "odd", "label": "even"}, {"name": "even"}])
    assert twice.key == "rlax.rewards.0.label" and "metrics could not tell" in twice.reason
    several = [{"name": "odd"}, {"name": "odd"}, {"name": "even", "label": "odd_1"}]
    indexed = wrong(several)  # the second reward `odd` is odd_1 in metrics
    assert indexed.key == "rlax.rewards.2.label" and indexed.value == "odd_1"
    assert "metrics could not tell" in indexed.reason
    assert len(section([*several[:2], {"name": "even", "label": "odd_2"}]).rewards) == 3
    part = wrong([*several[:2], {"name": "odd_0"}])
    assert part.key == "rlax.rewards.2.name" and "give it a label" in part.reason
    assert "has the label '', which must be" in wrong([{"name": "even", "label": ""}]).reason


def written(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)


CONFIG = """
run_name: r
rlax:
  plugins: [rlax_plugin.testing]
  prompt_source: {name: numbers}
  rewards: [{function: rewards.py:correct}, {function: /abs/other.py:f}]
"""


def test_files_are_relative_to_the_config_file_that_names_them(tmp_path: Path) -> None:
    path = written(tmp_path, "c.yml", CONFIG)
    found = {"rewards.py": str(tmp_path / "rewards.py"), "/abs/other.py": "/abs/other.py"}
    assert resolve(path).functions == found
    assert resolve(path).with_content({"steps": 3}).functions == found
    upper = written(tmp_path / "upper", "d.yml", "base_config: ../c.yml\nrlax: {seed: 3}\n")
    based = resolve(upper)
    assert [one.function for one in based.section.rewards] == [
        "../rewards.py:correct",
        "/abs/other.py:f",
    ]
    there = based.functions["../rewards.py"]
    assert Path(there).resolve() == (tmp_path / "rewards.py").resolve()


def test_a_runs_directory_has_the_files_among_its_copies(tmp_path: Path) -> None:
    path = written(tmp_path, "config.yml", CONFIG)
    copy = written(tmp_path / "functions", "rewards.py", "")
    assert resolve(path).functions["rewards.py"] == copy


def test_the_digests_identify_a_run_and_no_sample(tmp_path: Path) -> None:
    config = resolve(written(tmp_path, "c.yml", CONFIG))
    one, other = (
        config.with_content({"rlax": {"functions": {"rewards.py": digest}}}) for digest in "ab"
    )
    assert config_hash(one.content) != config_hash(other.content)
    assert sample_hash(one.content) == sample_hash(other.content) == sample_hash(config.content)
    # A worker has no files of functions, and joins.
    joined = for_worker(of_bytes(to_bytes(one)), [])
    assert joined.section.rewards == config.section.rewards
    registry_for(joined.section).validate(joined.section)
