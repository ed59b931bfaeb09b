"""Configs with a tiny model: those for SmolLM2, and those of pages on moving from elsewhere."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tiny_models
from data_sets import write_lines
from documents import fences, read
from processes import finished, python_path
from pyarrow import parquet
from safetensors.numpy import load_file, save_file
from small_tokenizers import byte_level

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

ROOT = Path(__file__).parents[2]
STEPS, VOCABULARY = 2, 272

pytestmark = [pytest.mark.ci, pytest.mark.timeout(500)]


def source(directory: Path) -> Path:
    """A Llama with two layers, tied embeddings and a byte-level tokenizer with a chat template."""
    reference = tiny_models.known("llama_tied")
    shapes = {
        name: (VOCABULARY, *shape[1:]) if "embed_tokens" in name else shape
        for name, shape in reference["tensors"].items()
    }
    byte_level(directory)
    weights = tiny_models.weights(shapes, "llama")
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    config = reference["config"] | {"vocab_size": VOCABULARY, "max_position_embeddings": 512}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def done(*arguments: str, cwd: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(ROOT / "tests/helpers"))
        found = finished(*arguments, cwd=cwd)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with configs/, models/ and runs/, as a checkout has them."""
    directory = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "configs", directory / "configs")
    source(directory / "source")
    done("convert", "source", "--out", "models/smollm2-135m-instruct", cwd=directory)
    few = "train_problems: 64, held_out_problems: 8"
    done(
        "train",
        "configs/smollm2_largest.yml",
        "run_name=tiny",
        f"steps={STEPS}",
        "max_target_length=125",
        "per_device_batch_size=4",
        "gradient_accumulation_steps=2",
        "learning_rate=1e-3",
        f"rlax.prompt_source={{name: number_tasks, task: largest, {few}}}",
        "rlax.rollouts.max_prompt_tokens=93",
        "rlax.rollouts.max_new_tokens=32",
        "rlax.rollouts.group_size=4",
        "rlax.rollouts.groups_per_step=2",
        "rlax.rollouts.slots=8",
        "rlax.plugins=[even_letter]",
        "rlax.rewards=[{name: even_letter}]",
        "rlax.evaluation.problems=0",
        "rlax.trackers=[]",
        cwd=directory,
    )
    return directory


def test_a_converted_model_is_trained_on_text_and_agrees_with_its_worker(home: Path) -> None:
    run = RunFiles(home / "runs" / "tiny")
    lines = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert max(line["logprob_gap/p95"] for line in lines) < 1e-4
    assert audit(run).clean


def test_what_was_trained_comes_out_for_transformers_and_goes_in_again(home: Path) -> None:
    done("export", "runs/tiny", "--out", "out", cwd=home)
    before, after = (load_file(home / d / "model.safetensors") for d in ("source", "out"))
    assert before.keys() == after.keys()
    assert all(np.any(before[name] != after[name]) for name in before)
    assert (home / "out" / "tokenizer.json").read_bytes() == (
        home / "source" / "tokenizer.json"
    ).read_bytes()
    done("convert", "out", "--out", "models/again", cwd=home)
    done("export", "models/again", "--out", "out_again", cwd=home)
    again = load_file(home / "out_again" / "model.safetensors")
    for name, tensor in after.items():
        np.testing.assert_array_equal(again[name], tensor)


def test_a_model_a_file_and_a_reward_are_enough_to_train(home: Path) -> None:
    """The commands of docs/your_data.md; the run is as small as ``rlax init`` makes one."""
    (home / "models" / "smollm2").symlink_to("smollm2-135m-instruct")
    rows = [{"question": f"Say {n % 9 + 1} ({n}).", "answer": n % 9 + 1} for n in range(64)]
    write_lines(home / "questions.jsonl", rows)
    commands = [
        line.split()[1:]
        for block in fences(read("your_data.md"), "sh")
        for line in block.splitlines()
        if line.startswith("rlax ")
    ]
    (init,) = [one for one in commands if one[0] == "init" and "--model" in one]
    assert ["train", "mine.yml"] in commands
    samples = ("--group-size=32", "--groups-per-step=4", "--max-new-tokens=12")
    done(*init, "--steps=1", "--workers=1", *samples, cwd=home)
    done("train", "mine.yml", "rlax.deadlines.startup_s=270", cwd=home)
    run = RunFiles(home / "runs" / "mine")
    (line,) = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert line["logprob_gap/p95"] < 1e-4 and 0 < line["reward/mean"] < 1
    assert line["learning/raw_grad_norm"] > 0
    assert audit(run).clean


@pytest.mark.parametrize("name", ["sum", "chat"])
def test_the_other_configs_suit_the_model(home: Path, name: str) -> None:
    """But for the lengths: the tiny model's tokens are single bytes."""
    more = ("max_target_length=206", "rlax.rollouts.max_prompt_tokens=200")
    said = done(
        *("check", f"configs/smollm2_{name}.yml", "rlax.rollouts.max_new_tokens=6", *more), cwd=home
    )
    assert "number_tasks" in said


CPU = ("hardware=cpu", "attention=dot_product")


def test_the_run_of_verl_that_was_moved_trains(home: Path) -> None:
    """The config, the function and the data of docs/from_verl.md, in small."""
    page = read("from_verl.md")
    (home / "moved.yml").write_text(fences(page, "yaml")[0])
    (home / "scores.py").write_text("".join(fences(page, "python")))
    (home / "models" / "qwen").symlink_to("smollm2-135m-instruct")
    (home / "data").mkdir()
    for split, first in (("train", 0), ("test", 64)):
        rows = [
            {
                "data_source": "digits",
                "prompt": [{"role": "user", "content": f"Say {number % 9} ({number})."}],
                "ability": "words",
                "reward_model": {"style": "rule", "ground_truth": str(number % 9)},
                "extra_info": {"split": split, "index": number},
            }
            for number in range(first, first + 32)
        ]
        parquet.write_table(pa.Table.from_pylist(rows), home / "data" / f"{split}.parquet")
    said = " ".join(done("check", "moved.yml", cwd=home).split())
    assert "warning: hardware is tpu, and this machine has no such device" in said
    small = ("steps=4", "checkpoint_period=4", "per_device_batch_size=16", "dtype=float32")
    sizes = ("rlax.rollouts.groups_per_step=8", "rlax.rollouts.group_size=4")
    rest = ("rlax.evaluation.every=1", "rlax.evaluation.problems=8", "rlax.launcher.workers=1")
    done("train", "moved.yml", *CPU, *small, *sizes, *rest, "rlax.rollouts.slots=32", cwd=home)
    run = RunFiles(home / "runs" / "run")
    lines = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert max(line["logprob_gap/p95"] for line in lines) < 1e-4
    assert audit(run).clean


def test_the_config_of_maxtext_with_one_more_key_trains(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(fences(read("from_maxtext.md"), "yaml")[0])
    (tmp_path / "plugins").symlink_to(ROOT / "plugins")
    assert "135,488 parameters" in done("check", "mine.yml", cwd=tmp_path)
    done(
        "train", "mine.yml", "run_name=moved", "steps=2", "rlax.evaluation.problems=8", cwd=tmp_path
    )
    run = RunFiles(tmp_path / "runs" / "moved")
    lines = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and audit(run).clean
