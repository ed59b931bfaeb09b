"""What ``rlax check`` tells of a config: words, numbers, warnings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from installs import on_path, write
from typer.testing import Result

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state.journal import FORMAT
from rlax_plugin.testing.trainer import BigramTrainer

ROOT = Path(__file__).parents[4]
TESTING = str(ROOT / "tests/configs/testing.yml")
DEMO = str(ROOT / "configs/demo.yml")
THRESHOLD = "rlax.curation.pass_threshold"
THREE = [{"name": "exact_answer"}] * 3


def check(*arguments: str) -> Result:
    return rlax("check", *arguments)


def explained(*arguments: str) -> dict[str, Any]:
    result = check(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def doubted(*arguments: str) -> dict[str, str]:
    return {one["key"]: one["text"] for one in explained(*arguments)["warnings"]}


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yml")))
def test_every_config_of_the_project_passes(name: str, tmp_path, monkeypatch) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    converted = tmp_path / "models/smollm2-135m-instruct"  # its keys alone: no weights are read
    converted.mkdir(parents=True)
    (converted / "model.yml").write_text("base_config: base.yml\nvocab_size: 49152\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "configs")  # tool_task.py
    result = check("--fast", f"configs/{name}")
    assert result.exit_code == 0, result.stderr


def test_evaluations_that_one_worker_cannot_make_are_doubted() -> None:
    every, key = ("rlax.evaluation.every=10",), "rlax.evaluation.every"
    assert key not in doubted("--fast", DEMO, *every)  # it has two workers
    for launcher in ("{name: local, workers: 1}", "{name: colocated}"):
        told = doubted("--fast", DEMO, *every, f"rlax.launcher={launcher}")
        assert told[key].startswith("is 10, but an evaluation during training needs a second")


def test_numbers_of_a_batch() -> None:
    objective = "rlax.objective={epochs: 2, mini_batches: 4, preset: ppo, old_policy: proximal}"
    numbers = explained("--fast", DEMO, "steps=64", objective)["numbers"]
    assert numbers == {
        "workers": 2,
        "groups_per_step": 64,
        "samples_per_step": 512,
        "rows_per_step": 512,
        "row_tokens": 13,
        "completion_tokens_per_step": 2560,
        "updates_per_step": 8,
        "rl_steps": 8,
        "groups": 512,
    }


def test_the_demo_in_words() -> None:
    document = explained("--fast", DEMO)
    words = document["words"]
    assert words["Processes"]["rollout workers"].startswith("2: jetstream, 256 slots each")
    assert "64 groups x 8 = 512 samples of at most 5" in words["One step"]["samples"]
    assert "8,192 completions" in words["The run"]["evaluation"]
    assert words["Staleness"]["staleness"].startswith("lockstep, on-policy")
    assert "clipped_ratio" in words["Objective"]["preset"]
    assert words["Files"]["weights"].startswith("runs/demo/weights")
    assert document["warnings"] == [] and document["memory_bytes"] == {}


@pytest.mark.parametrize(
    ("override", "key", "text"),
    [
        ("rlax.evaluation.problems=0", "rlax.evaluation.problems", "is 0"),
        ("rlax.curation.filters=[]", "rlax.curation.filters", "teach nothing"),
        ("rlax.rollouts.slots=512", "rlax.rollouts.slots", "half of the slots"),
        ("rlax.rollouts.temperature=0.1", "rlax.rollouts.temperature", "alike"),
        ("model_name=qwen3-0.6b", "rlax.rollouts.max_new_tokens", "is 5, which is short"),
        ("rlax.objective.allow_uncorrected=true", "rlax.objective.allow_uncorrected", "is true"),
        ("learning_rate=1e9", "learning_rate", "is 1e+09, with which the first update destroys"),
        ("use_sft=true", "use_sft", "has no effect: it is of MaxText's supervised training"),
        ("rlax.objective.preset=ppo", "rlax.objective.preset", "advantage gae reads the values"),
        (
            "rlax.objective.advantage={name: gae}",
            "rlax.objective.advantage",
            "is gae, which reads the values",
        ),
        ("run_name=", "run_name", "is not set"),
        ("rlax.rewards=[{name: exact_answer}, {name: exact_answer}]", THRESHOLD, "its 2 rewards"),
        (f"rlax.evaluation.sets={{hard: {{rewards: {THREE}}}}}", THRESHOLD, "its 3 rewards"),
    ],
)
def test_what_is_allowed_and_perhaps_not_meant(override: str, key: str, text: str) -> None:
    found = doubted("--fast", DEMO, override)
    assert list(found) == [key] and text in found[key]


def test_a_learning_rate_of_sgd_may_be_large() -> None:
    assert doubted("--fast", DEMO, "learning_rate=1", "opt_type=sgd") == {}


def test_a_key_that_is_given_twice_is_told() -> None:
    merged = ("rlax.deadlines={startup_s: 500}", "rlax.deadlines={reward_s: 20}")
    found = doubted("--fast", DEMO, "steps=64", "rlax.seed=1", *merged, "steps=128")
    assert found == {"steps": "is given 2 times on the command line: the last one counts"}


def test_a_converted_model_without_a_name_counts_as_pretrained(tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    (tmp_path / "items/_METADATA").touch()
    found = doubted("--fast", DEMO, f"load_parameters_path={tmp_path}/items")
    assert "which is short for the answers of a pretrained model" in str(found)


@pytest.mark.parametrize(
    ("part", "options"),
    {
        "group_normalised": (),
        "leave_one_out": (),
        "length_weighted": (),
        "batch_normalised": ("rlax.objective.advantage.baseline=group_mean",),
    }.items(),
)
def test_a_group_of_one_is_an_error_where_advantages_compare_its_samples(
    part: str, options: tuple[str, ...]
) -> None:
    one = (DEMO, "rlax.rollouts.group_size=1", "rlax.rollouts.slots=32", "rlax.curation.filters=[]")
    result = check("--fast", *one, f"rlax.objective.advantage.name={part}", *options)
    assert result.exit_code == 2
    assert (
        f"group_size = 1: must be at least 2 with rlax.objective.advantage = {part}, "
        in " ".join(result.stderr.split())
    )
    alone = "rlax.objective.advantage.name=batch_normalised"
    assert doubted("--fast", *one, alone) == {}


def test_rewards_that_all_have_weight_0_are_an_error_unless_the_environment_pays() -> None:
    recorded = "rlax.rewards=[{name: exact_answer, weight: 0}]"
    result = check("--fast", DEMO, recorded)
    assert result.exit_code == 2
    assert "rlax.rewards.0.weight = 0.0: must not be 0 for every reward" in result.stderr
    paid = ("rlax.environment.name=calculator", recorded)
    assert check("--fast", DEMO, *paid).exit_code == 0
    both = "rlax.rewards=[{name: exact_answer, weight: 0}, {name: exact_answer}]"
    assert check("--fast", DEMO, both).exit_code == 0


def test_the_whole_check_reads_the_prompts() -> None:
    few = explained(TESTING, "steps=1", "rlax.rollouts.slots=8")
    prompts, asked = few["numbers"]["training_prompts"], few["numbers"]["groups"]
    assert few["numbers"]["epochs"] == asked / prompts
    assert [one["key"] for one in few["warnings"]] == ["steps"]
    assert (
        f"{asked} groups, fewer than the {prompts} training prompts" in few["warnings"][0]["text"]
    )
    result = check(TESTING, "rlax.rollouts.max_prompt_tokens=1")
    assert result.exit_code == 2
    assert "max_prompt_tokens = 1: must be at least" in result.stderr
    tests = doubted(TESTING, "steps=1000", "rlax.evaluation.problems=100000")
    assert "but the split 'test' has" in tests["rlax.evaluation.problems"]


CANNOT_BE_BUILT = """
from rlax_plugin.api import ConfigError, Extension, NoOptions, hookimpl

def build(config, context):
    raise ConfigError("rlax.environment.words", "a", "must be a list of tool names")

@hookimpl
def rlax_register_environment():
    return {"toolless": Extension(NoOptions, build)}
"""


def test_the_whole_check_builds_the_environment(tmp_path: Path) -> None:
    write(tmp_path, "toolless", CANNOT_BE_BUILT)
    chosen = ("rlax.plugins=[rlax_plugin.testing, toolless]", "rlax.environment.name=toolless")
    with on_path(tmp_path):
        assert check("--fast", TESTING, *chosen).exit_code == 0
        result = check(TESTING, *chosen)
    assert result.exit_code == 2
    said = "error: rlax.environment.words = 'a': must be a list of tool names"
    assert result.stderr.startswith(said)


def test_text_says_what_json_says() -> None:
    result = check("--fast", DEMO, "rlax.evaluation.problems=0")
    text = " ".join(result.stdout.split())
    assert text.startswith(f"ok section rlax: of {DEMO} Processes trainer 1: maxtext")
    assert "warning: rlax.evaluation.problems is 0" in text
    assert text.endswith(
        "Not checked with --fast: MaxText's keys, trainer, memory, environment, prompts"
    )
    assert "\x1b" not in result.stdout


def test_check_says_what_train_says_of_another_run_in_the_directory(tmp_path: Path) -> None:
    run = RunFiles(tmp_path / "mine")
    run.put_json("config.json", {"format": FORMAT, "config_hash": "abc"})
    run.put("journal/1", b"")
    result = check("--fast", TESTING, f"base_output_directory={tmp_path}", "run_name=mine")
    assert result.exit_code == 2 and "mine holds a run of another config" in result.stderr


def test_check_knows_what_the_trainer_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BigramTrainer, "takes_signals", False)
    needed = ("rlax.objective.kl.coefficient=0.1", "rlax.signals=[{name: reference}]")
    result = check(TESTING, *needed)
    assert result.exit_code == 2
    assert "rlax.signals = ['reference']: would be ignored" in result.stderr
