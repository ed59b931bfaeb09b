"""The run's config on its way to a worker: what is handed out, believed, and added."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import handing
from rlax_plugin.config.handing import MAX_BYTES, for_worker, of_bytes, to_bytes
from rlax_plugin.config.identity import config_hash, sample_hash
from rlax_plugin.config.loading import ResolvedConfig, resolve

RUN = """
base_config: base.yml
steps: 10
learning_rate: 3.e-4
hf_access_token: secret
rlax:
  prompt_source: {name: numbers, digits: 2}
  rewards: [{name: even}]
  rollouts: {group_size: 4, slots: 16, engine: {name: scripted, token_s: 0.5}}
  trackers: [{name: wandb, key: hunter2}]
  observers: [{name: chat, url: hunter3}]
"""


def run_of(folder: Path, *overrides: str, text: str = RUN) -> ResolvedConfig:
    path = folder / "run.yml"
    path.write_text(text)
    return resolve(path, overrides)


def test_what_arrives_is_what_was_handed_out_without_secrets(tmp_path):
    run = run_of(tmp_path, "dtype=float32", "rlax.seed=3")
    text = to_bytes(run)
    assert b"hunter" not in text and b"secret" not in text
    there = of_bytes(text)
    assert there.section == run.section.model_copy(update={"trackers": (), "observers": ()})
    assert there.maxtext == {k: v for k, v in run.maxtext.items() if k != "hf_access_token"}
    assert there.arguments == {"dtype"} == run.arguments
    assert sample_hash(there.content) == sample_hash(run.content)


SECRETS = """
hf_access_token: secret-1
dataset_path: https://me:secret-2@host/data
rlax:
  prompt_source: {name: numbers, token: secret-3}
  rewards: [{name: even, api_key: secret-4, judge: {headers: {Authorization: secret-5}}, n: 2}]
  rollouts: {group_size: 4, engine: {name: scripted, password: secret-6}}
  weights: {store: {name: npz, secret_key: secret-7}}
"""


def test_secrets_are_not_handed_out_and_a_worker_may_have_its_own(tmp_path):
    run = run_of(tmp_path, text=SECRETS)
    text = to_bytes(run)
    assert b"secret-" not in text
    there = of_bytes(text)
    assert there.section.rewards[0].options == {"judge": {"headers": {}}, "n": 2}
    assert sample_hash(there.content) == sample_hash(run.content)
    own = for_worker(there, ["hf_access_token=mine", "rlax.rollouts.engine.password=mine"])
    assert own.maxtext["hf_access_token"] == "mine"
    assert own.section.rollouts.engine.options == {"password": "mine"}
    assert sample_hash(own.content) == sample_hash(run.content)
    # Nor is a run with another token another run.
    other = run_of(tmp_path, "hf_access_token=b", text=SECRETS)
    assert config_hash(other.content) == config_hash(run.content)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "it is not valid JSON"),
        (b"[" * 100_000, "it is not valid JSON"),
        (b"\xff\xfe", "it is not valid JSON"),
        (b"[1]", "it contains no config"),
        (b'{"content": [], "arguments": []}', "it contains no config"),
        (b'{"content": {}, "arguments": []}', "has no rlax: section"),
        (b" " * (MAX_BYTES + 1), "takes more than 1,048,576 bytes"),
        (json.dumps({"content": {"a\nb": 1}}).encode(), "must be text without control characters"),
        (json.dumps({"content": {"a": 10**30}}).encode(), "must fit into 64 bits"),
        (json.dumps({"content": {"a": "\ud800"}}).encode(), "half of a surrogate pair"),
    ],
)
def test_what_came_from_a_controller_is_checked(text, reason):
    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        of_bytes(text)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"run_name": "../up"}, "run_name"),
        ({"load_parameters_path": "${oc.env:HOME}"}, "load_parameters_path"),
        ({"steps": -1}, "steps"),
        ({"rlax": {"rollouts": {"slots": 0}}}, "rlax.prompt_source"),
    ],
)
def test_values_that_no_file_may_hold_are_rejected(changes, key, tmp_path):
    content = {**run_of(tmp_path).content, **changes}
    with pytest.raises(ConfigError) as rejected:
        of_bytes(json.dumps({"content": content, "arguments": []}).encode())
    assert rejected.value.key == key


def test_a_config_that_is_too_large_is_not_handed_out(tmp_path, monkeypatch):
    run = run_of(tmp_path)
    monkeypatch.setattr(handing, "MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="workers accept at most 100"):
        to_bytes(run)


def test_a_worker_adds_what_is_local_and_the_hash_stays(tmp_path):
    run = run_of(tmp_path)
    local = [
        "rlax.rollouts.slots=4",
        "rlax.rollouts.engine.seeded=false",
        "rlax.deadlines.group_s=9",
        "rlax.weights.transfer=stream",
        "rlax.weights.stream_dir=/scratch",
        "ici_tensor_parallelism=2",
        "hardware=gpu",
    ]
    one = for_worker(run, local)
    assert (one.section.rollouts.slots, one.section.rollouts.group_size) == (4, 4)
    assert one.section.rollouts.engine.options == {"token_s": 0.5, "seeded": False}
    assert one.section.weights.transfer == "stream" and run.section.weights.transfer == "path"
    assert one.section.deadlines.group_s == 9 and one.maxtext["hardware"] == "gpu"
    assert one.arguments == {"ici_tensor_parallelism", "hardware"}
    assert sample_hash(one.content) == sample_hash(run.content)
    assert config_hash(one.content) != config_hash(run.content)
    other = for_worker(run, ["rlax.rollouts.engine={name: jetstream}"])
    assert other.section.rollouts.engine.options == {}  # those were of another engine


@pytest.mark.parametrize(
    "said", ["rlax.rollouts.group_size=4", "learning_rate=0.0003", "rlax.rollouts.top_k=0"]
)
def test_saying_what_holds_anyway_changes_nothing(said, tmp_path):
    run = run_of(tmp_path)
    assert for_worker(run, [said]) == run


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("rlax.rollouts.group_size=8", "rlax.rollouts.group_size = 8: is 4 in the run"),
        ("rlax.rollouts.temperature=0.5", "rlax.rollouts.temperature = 0.5: is 1.0 in the run"),
        ("dtype=float32", "dtype = 'float32': is not set in the run"),
        ("steps=11", "steps = 11: is 10 in the run"),
        ("rlax.prompt_source.digits=3", "rlax.prompt_source.digits = 3: is 2 in the run"),
    ],
)
def test_another_value_of_what_is_the_runs_is_an_error_that_names_the_key(said, message, tmp_path):
    with pytest.raises(ConfigError) as rejected:
        for_worker(run_of(tmp_path), ["rlax.rollouts.slots=4", said])
    assert str(rejected.value).startswith(message)


@pytest.mark.parametrize(
    ("runs", "said", "message"),
    [
        ("null", "quantization=int8", "quantization = 'int8': is not set in the run"),
        ("int8", "quantization=null", "quantization: is int8 in the run"),
        ("int8", "name=vllm", "quantization: is int8 in the run"),
    ],
)
def test_all_workers_of_a_run_generate_with_the_same_policy(runs, said, message, tmp_path):
    run = run_of(tmp_path, f"rlax.rollouts.engine.quantization={runs}")
    with pytest.raises(ConfigError) as rejected:
        for_worker(run, [f"rlax.rollouts.engine.{said}"])
    assert str(rejected.value).startswith(f"rlax.rollouts.engine.{message}")
    same = for_worker(run, [f"rlax.rollouts.engine.quantization={runs}", "rlax.rollouts.slots=4"])
    assert sample_hash(same.content) == sample_hash(run.content)


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("rlax.rollouts.slots=3", True),
        ("rlax.rollouts.engine.token_s=1", True),
        ("rlax.rollouts.engine.quantization=int8", False),
        ("rlax.rollouts.groups_per_step=3", True),
        ("rlax.objective.preset=grpo", True),
        ("rlax.deadlines.rpc_s=1", True),
        ("dcn_data_parallelism=2", True),
        ("rlax.weights.transfer=stream", True),
        ("rlax.weights.dtype=bfloat16", False),
        ("rlax.staleness.max_staleness=2", False),
        ("rlax.deterministic=true", False),
        ("rlax.rollouts.temperature=0.5", False),
        ("rlax.rollouts.on_new_weights=discard", False),
        ("rlax.weights.store.name=npz", False),
        ("base_emb_dim=8", False),
    ],
)
def test_the_hash_that_workers_share_is_of_what_decides_a_sample(override, same, tmp_path):
    run, other = run_of(tmp_path), run_of(tmp_path, override)
    assert (sample_hash(run.content) == sample_hash(other.content)) is same


def test_what_a_run_keeps_is_read_as_it_was(tmp_path):
    """Text that looks like a number to one of the readers stays text."""
    from omegaconf import OmegaConf

    from rlax_plugin.config.loading import of_yaml

    said: dict[str, Any] = {
        "a": "1e5",
        "b": 1e-05,
        "c": "2026-01-02",
        "d": "yes",
        "e": "",
        "f": "é\n  x",
    }
    content = {**run_of(tmp_path).content, **said}
    path = tmp_path / "kept.yml"
    path.write_bytes(ResolvedConfig(resolve(tmp_path / "run.yml").section, {}, content).to_yaml())
    assert of_yaml(path.read_bytes(), "kept").content == content
    assert OmegaConf.to_container(OmegaConf.load(path)) == content
