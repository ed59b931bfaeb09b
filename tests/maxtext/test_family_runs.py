"""Families with windows and with experts, converted and trained: trainer and worker agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_models
from processes import finished
from safetensors.numpy import save_file
from small_tokenizers import byte_level

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

ROOT = Path(__file__).parents[2]
STEPS, VOCABULARY = 2, 272

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]


def source(family: str, directory: Path) -> Path:
    """The family's tiny model with a byte-level tokenizer, and longer sequences."""
    reference = tiny_models.known(family)
    shapes = {
        name: (VOCABULARY, *shape[1:]) if "embed_tokens" in name or "lm_head" in name else shape
        for name, shape in reference["tensors"].items()
    }
    byte_level(directory)
    kind = reference["config"]["model_type"]
    weights = tiny_models.weights(shapes, kind, reference.get("embedding", 1.0))
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    longer = {"vocab_size": VOCABULARY, "max_position_embeddings": 512}
    (directory / "config.json").write_text(json.dumps(reference["config"] | longer))
    return directory


@pytest.mark.parametrize("family", ["gemma3", "qwen3_moe"])
def test_it_is_trained_and_agrees_with_its_worker(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    source(family, tmp_path / "source")
    commands = (
        ("convert", "source", "--out", "models/tiny"),
        ("init", "run.yml", "--model", "models/tiny", "--steps=2", "--workers=1"),
        (
            *("train", "run.yml", "run_name=tiny", "max_target_length=125"),
            *("per_device_batch_size=4", "gradient_accumulation_steps=2"),
            "rlax.prompt_source={name: number_tasks, task: largest, train_problems: 64, "
            "held_out_problems: 8}",
            *("rlax.rollouts.max_prompt_tokens=93", "rlax.rollouts.max_new_tokens=32"),
            *("rlax.rollouts.group_size=4", "rlax.rollouts.groups_per_step=2"),
            *("rlax.rollouts.slots=8", "rlax.plugins=[even_letter]"),
            *("rlax.rewards=[{name: even_letter}]", "rlax.evaluation.problems=0"),
            "rlax.trackers=[]",
        ),
    )
    for arguments in commands:
        found = finished(*arguments, cwd=tmp_path)
        assert found.returncode == 0, found.stdout + found.stderr
    run = RunFiles(tmp_path / "runs" / "tiny")
    lines = [json.loads(line) for line in run.get("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert max(line["logprob_gap/p95"] for line in lines) < 1e-4
    assert audit(run).clean
