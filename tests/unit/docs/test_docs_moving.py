"""The examples of the pages docs/from_*.md say the same before and after."""

import ast
import importlib.util
import re
import runpy
from pathlib import Path

import pytest
import yaml
from documents import ROOT, fences, prose, read, sections

from rlax_plugin.build import registry_of
from rlax_plugin.config.loading import ResolvedConfig, resolve
from rlax_plugin.tools.commands.reference import PARTS
from rlax_plugin.tools.commands.reference import sections as config_sections

PAGES = {name: read(f"from_{name}.md") for name in ("verl", "maxtext", "trl", "tunix")}
VERL, MAXTEXT, TUNIX = PAGES["verl"], PAGES["maxtext"], PAGES["tunix"]


def resolved(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedConfig:
    """The config of a page, in a directory with all that it names."""
    (block,) = fences(page, "yaml")
    base = tmp_path / str(yaml.safe_load(block)["base_config"])
    if "/" in yaml.safe_load(block)["base_config"]:  # which rlax convert writes
        base.parent.mkdir(parents=True)
        base.write_text("base_config: base.yml\n")
    for code in fences(page, "python"):
        (file,) = re.findall(r'function: "(\w+\.py):', block)
        (tmp_path / file).write_text(code)
    path = tmp_path / "page.yml"
    path.write_text(block)
    monkeypatch.chdir(tmp_path)
    return resolve(path)


def test_the_config_says_what_the_command_of_verl_said(tmp_path, monkeypatch) -> None:
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


def test_the_config_of_maxtext_has_one_more_key(tmp_path, monkeypatch) -> None:
    found = resolved(MAXTEXT, tmp_path, monkeypatch)
    rollouts = found.section.rollouts
    assert found.maxtext["per_device_batch_size"] == rollouts.group_size * rollouts.groups_per_step
    assert found.maxtext["max_target_length"] == (
        rollouts.max_prompt_tokens + rollouts.max_new_tokens
    )


def keywords_of(script: str) -> dict[str, object]:
    """The keyword arguments of a script's calls whose values are numbers."""
    calls = (node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call))
    return {
        str(keyword.arg): keyword.value.value
        for call in calls
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, int | float)
    }


def test_the_config_says_what_the_script_of_tunix_and_the_command_of_maxtext_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, command = fences(TUNIX, "text")
    tunix, driver = keywords_of(script), dict(re.findall(r"^ +([\w.]+)=(\S+)", command, re.M))
    config = resolved(TUNIX, tmp_path, monkeypatch)
    maxtext, rollouts, objective = config.maxtext, config.section.rollouts, config.section.objective
    prompts = rollouts.groups_per_step
    described = sections(read("objectives.md"), 3)["tunix/grpo"]
    preset = yaml.safe_load(fences(described, "yaml")[0])
    assert objective.preset == "tunix/grpo"
    pairs = {
        ("b1", ""): maxtext["adam_b1"],
        ("b2", "adam_b2"): maxtext["adam_b2"],
        ("weight_decay", ""): maxtext["adam_weight_decay"],
        ("max_norm", "gradient_clipping_threshold"): maxtext["gradient_clipping_threshold"],
        ("max_steps", "num_batches"): maxtext["steps"],
        ("mini_batch_size", "batch_size"): prompts // objective.mini_batches,
        ("train_micro_batch_size",) * 2: prompts // maxtext["gradient_accumulation_steps"],
        ("eval_every_n_steps", "eval_interval"): config.section.evaluation.every,
        ("save_interval_steps", "checkpoint_period"): maxtext["checkpoint_period"],
        ("max_to_keep", "max_num_checkpoints_to_keep"): maxtext["max_num_checkpoints_to_keep"],
        ("max_prompt_length", "max_prefill_predict_length"): rollouts.max_prompt_tokens,
        ("max_tokens_to_generate", ""): rollouts.max_new_tokens,
        ("", "max_target_length"): rollouts.max_prompt_tokens + rollouts.max_new_tokens,
        ("temperature", "decode_sampling_temperature"): rollouts.temperature,
        ("", "learning_rate"): maxtext["learning_rate"],
        ("num_generations", "rl.num_generations"): rollouts.group_size,
        ("beta", "rl.grpo_beta"): preset["kl"]["coefficient"],
        ("epsilon", "rl.grpo_epsilon"): preset["grad_1"]["low"],
    }
    assert tunix == {theirs: value for (theirs, _), value in pairs.items() if theirs}
    ours = {theirs: value for (_, theirs), value in pairs.items() if theirs}
    assert {key: type(value)(driver[key]) for key, value in ours.items()} == ours
    others = {"model_name", "load_parameters_path", "reward_functions_path", "reward_functions"}
    assert driver.keys() == ours.keys() | others | {"decode_sampling_top_k"}
    rows = maxtext["per_device_batch_size"] * maxtext["gradient_accumulation_steps"]
    assert rows == prompts * rollouts.group_size and maxtext["max_target_length"] == 1024
    correct = runpy.run_path("rewards.py")["correct"]
    texts, answers = ["so 12", "so 13"], ["6 + 6 #### 12"] * 2
    assert correct(prompts=["?"] * 2, completions=texts, answer=answers) == [1.0, 0.0]
    assert correct(["?"] * 2, texts, answers, tmvp_config=None) == [1.0, 0.0]


def test_the_keys_of_maxtext_in_the_tables_for_tunix_are_those_of_the_installed_version() -> None:
    maxtext = importlib.util.find_spec("maxtext")
    assert maxtext is not None and maxtext.submodule_search_locations
    configs = Path(maxtext.submodule_search_locations[0]) / "configs"
    texts = [(configs / name).read_text() for name in ("base.yml", "post_train/rl.yml", "types.py")]
    known = set(re.findall(r"^ *(\w+) ?:", "\n".join(texts), re.MULTILINE))
    columns = re.findall(r"^\| [^|]* \| ([^|]*) \| ", prose(TUNIX), re.MULTILINE)
    keys = {key for cell in columns for key in re.findall(r"`(?:rl\.|lora\.)?(\w+)`", cell)}
    assert len(keys) >= 40 and keys - known == {"yml"}  # of the headings


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_presets_and_parts_of_the_tables_exist(page: str) -> None:
    offers = registry_of(()).offers
    for name in re.findall(r"`rlax explain ([\w/]+)`|`preset=\"([\w/]+)\"`", prose(page)):
        assert "".join(name) in offers["objective"]
    rows = re.findall(r"^\| .* \| `(rlax\.objective\.[\w.]+)`: (.*) \|$", prose(page), re.M)
    kinds = {"aggregation": "aggregation", "preset": "objective"}
    for key, values in rows:
        known = offers[kinds[key.rpartition(".")[2]]]
        named = {one for one in re.findall(r"`([\w/]+)`", values) if "_" in one or one in known}
        assert named and named <= known.keys(), (key, named - known.keys())


def test_options_of_parts_in_the_tables_exist() -> None:
    offers = registry_of(()).offers
    wrong, checked = set[str](), 0
    for page in PAGES.values():
        for key in set(re.findall(r"`(rlax(?:\.[a-z_0-9]+)+)", page)):
            place, _, option = key.rpartition(".")
            if place not in PARTS:
                continue
            parts = [offer.extension.config_class for offer in offers[PARTS[place]].values()]
            checked += 1
            if not any(option in one.model_fields for one in parts):
                wrong.add(key)
    assert checked >= 10 and wrong == set()


def test_all_keys_of_sections_in_the_tables_exist() -> None:
    known = {key.key for section in config_sections() for key in section.keys}
    known |= {section.title for section in config_sections()}
    for page in PAGES.values():
        keys = set(re.findall(r"`(rlax\.(?:rollouts|staleness|batches|evaluation)\.\w+)`", page))
        assert keys and keys <= known, keys - known
    assert (ROOT / "plugins/rlax_arithmetic/tokenizer_files").is_dir()  # which a page names
