"""The examples of docs/from_verl.md and docs/from_maxtext.md say the same before and after."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml
from documents import ROOT, fences, prose, read

from rlax_plugin.build import registry_of
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.tools.commands.reference import sections as config_sections

VERL, MAXTEXT, TRL = (read(f"from_{name}.md") for name in ("verl", "maxtext", "trl"))


def resolved(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedConfig:
    """The config of a page, in a directory with all that it names."""
    (block,) = fences(page, "yaml")
    base = tmp_path / str(yaml.safe_load(block)["base_config"])
    if "/" in yaml.safe_load(block)["base_config"]:  # which rlax convert writes
        base.parent.mkdir(parents=True)
        base.write_text("base_config: base.yml\n")
    for code in fences(page, "python"):
        (tmp_path / "scores.py").write_text(code)
    path = tmp_path / "page.yml"
    path.write_text(block)
    monkeypatch.chdir(tmp_path)
    return resolve(path)


def test_the_config_says_what_the_command_of_verl_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = fences(VERL, "text")[0]
    verl = dict(re.findall(r"^ +([\w.]+)=(\S+)", command, re.MULTILINE))
    found = resolved(VERL, tmp_path, monkeypatch)
    maxtext, rlax = found.maxtext, found.section
    groups, objective = rlax.rollouts.groups_per_step, rlax.objective
    assert objective.preset == f"verl/{verl['algorithm.adv_estimator']}"
    updates = objective.mini_batches * objective.epochs
    ours = {
        "data.train_files": rlax.prompt_source.options["splits"]["train"],
        "data.val_files": rlax.prompt_source.options["splits"]["test"],
        "data.train_batch_size": groups,
        "data.max_prompt_length": rlax.rollouts.max_prompt_tokens,
        "data.max_response_length": rlax.rollouts.max_new_tokens,
        "actor_rollout_ref.actor.optim.lr": maxtext["learning_rate"],
        "actor_rollout_ref.actor.ppo_mini_batch_size": groups // objective.mini_batches,
        "actor_rollout_ref.actor.entropy_coeff": objective.entropy_coefficient,
        "actor_rollout_ref.rollout.n": rlax.rollouts.group_size,
        "trainer.total_training_steps": maxtext["steps"] // updates,
        "trainer.save_freq": maxtext["checkpoint_period"] // updates,
        "trainer.test_freq": rlax.evaluation.every,
    }
    assert {key: type(value)(verl[key]) for key, value in ours.items()} == ours
    others = {"algorithm.adv_estimator", "actor_rollout_ref.model.path"}
    others |= {"custom_reward_function.path", "custom_reward_function.name"}
    assert verl.keys() == ours.keys() | others
    rows = groups * rlax.rollouts.group_size
    assert maxtext["per_device_batch_size"] * updates == rows
    assert maxtext["max_target_length"] == rlax.rollouts.max_prompt_tokens + int(
        verl["data.max_response_length"]
    )
    functions = runpy.run_path("scores.py")
    row = {"completion": "so 12", "data_source": "sums"}
    for reference, score in (("12", 1.0), ("13", 0.0)):
        assert functions["score"](reference=reference, **row) == score
        assert functions["compute_score"]("sums", "so 12", reference, None) == score


def test_the_config_of_maxtext_has_one_more_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resolved(MAXTEXT, tmp_path, monkeypatch)
    rollouts = found.section.rollouts
    assert found.maxtext["per_device_batch_size"] == rollouts.group_size * rollouts.groups_per_step
    assert found.maxtext["max_target_length"] == (
        rollouts.max_prompt_tokens + rollouts.max_new_tokens
    )


@pytest.mark.parametrize("page", [VERL, MAXTEXT, TRL], ids=["verl", "maxtext", "trl"])
def test_presets_and_parts_of_the_tables_exist(page: str) -> None:
    offers = registry_of(()).offers
    for name in re.findall(r"`rlax explain ([\w/]+)`|`preset=\"([\w/]+)\"`", prose(page)):
        assert "".join(name) in offers["objective"]
    rows = dict(re.findall(r"^\| .* \| `(rlax\.objective\.[\w.]+)`: (.*) \|$", prose(page), re.M))
    kinds = {"aggregation": "aggregation", "preset": "objective"}
    for key, values in rows.items():
        known = offers[kinds[key.rpartition(".")[2]]]
        named = {one for one in re.findall(r"`([\w/]+)`", values) if "_" in one or one in known}
        assert named and named <= known.keys(), (key, named - known.keys())


def test_all_keys_of_sections_in_the_tables_exist() -> None:
    known = {key.key for section in config_sections() for key in section.keys}
    known |= {section.title for section in config_sections()}
    for page in (VERL, MAXTEXT, TRL):
        keys = set(re.findall(r"`(rlax\.(?:rollouts|staleness|batches|evaluation)\.\w+)`", page))
        assert keys and keys <= known, keys - known
    assert (ROOT / "plugins/rlax_arithmetic/tokenizer_files").is_dir()  # which a page names
