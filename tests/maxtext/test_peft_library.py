"""Adapters there and back with PEFT itself, in an environment of its own (RLAX_PEFT_PYTHON)."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import peft_directories as directories
import pytest
import tiny_loop
import tiny_models
from tiny_loop import TINY, Recorder, train

from maxtext_overrides.models import convert
from maxtext_overrides.models.forward import EXACT
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.loading import merged, resolve
from rlax_plugin.tools.commands.export import export, find_source

PYTHON = os.environ.get("RLAX_PEFT_PYTHON", "")
PROGRAM = Path(__file__).with_name("peft_program.py")
PROMPTS = 60

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="RLAX_PEFT_PYTHON names no Python with peft"),
]


def told(*arguments: object) -> None:
    command = [PYTHON, "-P", str(PROGRAM), *map(str, arguments)]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={"HF_HUB_OFFLINE": "1"}
    )
    assert found.returncode == 0, found.stderr


def generated(directory: Path, *source: Path) -> np.ndarray:
    prompts, answers = directory / "prompts.npy", directory / "answers.npy"
    np.save(prompts, np.random.default_rng(7).integers(0, 64, (PROMPTS, 8)))
    told("generate", *source, prompts, answers)
    return np.load(answers)


# One that transformers writes; one whose heads are reordered, and one whose queries are rescaled.
@pytest.mark.parametrize("family", ["written", "llama3", "gemma2_other"])
def test_adapters_of_peft_are_a_start_and_ours_are_read_by_it(tmp_path: Path, family: str) -> None:
    source, theirs, home = (tmp_path / name for name in ("source", "theirs", "home"))
    if family != "written":
        tiny_models.write(family, source)
    tokens, logits = tmp_path / "tokens.npy", tmp_path / "logits.npy"
    np.save(tokens, tiny_loop.batch(1)["inputs"].astype(np.int64))
    told("train", source, theirs, tokens, logits)
    home.mkdir()
    convert.examine(source, "float32", True).write(home, home, lambda *_: None)
    module = "decoder/layers.*/(self_attention[^/]*/(query|key|value|out)|mlp[^/]*/(wi_0|wi_1|wo))"
    lora = directories.LORA | {"lora_module_path": module, "lora_restore_path": str(theirs)}
    keys = merged(home / "model.yml", ()) | EXACT | {"lora": lora, "enable_checkpointing": True}
    del keys["base_config"]
    keys["tokenizer_path"] = str(tiny_models.write_tokenizer(96, tmp_path / "tokenizer"))
    argv = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    recorder = Recorder(stop_after=2, looks=True)
    train(tmp_path, *argv, recorder=recorder)
    np.testing.assert_allclose(recorder.first_logits, np.load(logits), atol=1e-4)

    run = tmp_path / "tiny"
    RunFiles(run).put(
        "config.yml", resolve(TINY, [*argv, f"base_output_directory={tmp_path}"]).to_yaml()
    )
    found = find_source(f"{run}/checkpoints/1", None, ())
    for name in ("ours", "whole"):
        export(found, str(tmp_path / name), dtype="float32", most_bytes=2**30, peft=name == "ours")
    answers = generated(tmp_path, source, tmp_path / "ours")
    np.testing.assert_array_equal(answers, generated(tmp_path, tmp_path / "whole"))
    assert (answers != generated(tmp_path, source, theirs)).any()  # training has changed them
    assert (answers != generated(tmp_path, source)).any()
