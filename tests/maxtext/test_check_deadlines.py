"""``rlax check`` on a model of 8 billion parameters: nothing is allocated, shapes are enough."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rlax_jetstream import JetstreamConfig
from typer.testing import CliRunner

from rlax_plugin.cli import app
from rlax_plugin.commands import init
from rlax_plugin.config import Rollouts

PARAMETERS = 8_030_261_248  # of Llama 3.1 8B
VERSION_S = 4 * PARAMETERS / 2e8  # weights are float32; 160.6 s at the assumed speed
NEW = 32_768
PREFILL_S = 8 * 8 / 5000  # prompts of the 8 groups of 8 samples that fit in 64 slots
# How long the engine may show no progress: one decode call.
SILENT_S = PREFILL_S + JetstreamConfig().longest_call(Rollouts(max_new_tokens=NEW)) / 20


def checked(config: str, *overrides: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What was found, and the warnings about deadlines."""
    result = CliRunner().invoke(
        app, ["check", config, *overrides, "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    warnings = {one["key"]: one["text"] for one in document["warnings"]}
    return document, {k: text for k, text in warnings.items() if k.startswith("rlax.deadlines.")}


def test_an_8b_model_with_32k_new_tokens_needs_longer_deadlines_and_is_told_which(tmp_path):
    path, config = tmp_path / "large.yml", str(tmp_path / "large.yml")
    init.write(path, {"model": "llama3.1-8b", "max_new_tokens": NEW})
    document, warnings = checked(config)
    needed = {k.rpartition(".")[2]: v["needed_s"] for k, v in document["deadlines"].items()}
    assert needed == pytest.approx(
        {
            "group_s": SILENT_S,
            # In lockstep: weights are written and read, samples generated and scored.
            "batch_s": PREFILL_S + NEW / 20 + 2 * VERSION_S + 10,
            "weights_s": VERSION_S,
            "startup_s": 60 + 2 * VERSION_S,
        }
    )
    expected = {
        "batch_s": ("300 s is too short", "together 1,970 s", "Set it to 2400"),
        "weights_s": ("120 s is too short", "29.9 GiB takes 161 s", "Set it to 200"),
        "startup_s": ("180 s is too short", "together 381 s", "Set it to 460"),
    }
    assert set(warnings) == {f"rlax.deadlines.{name}" for name in expected}
    for name, parts in expected.items():
        assert [part for part in parts if part not in warnings[f"rlax.deadlines.{name}"]] == []
    words = document["words"]["Deadlines"]
    assert words["weights_s"] == "120 s; at least 161 s are needed"
    assert words["drain_s"].startswith("20 s may be too short for a preempted worker")

    suggested = [f"{key}={found['suggested_s']:g}" for key, found in document["deadlines"].items()]
    assert checked(config, *suggested)[1] == {}
