"""What is on disk after steps were done again, and what happens when it cannot be written."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlax_plugin.controller.evaluation import record, recorded
from rlax_plugin.controller.records import MetricsWriter, RolloutWriter, write_json
from rlax_plugin.errors import RlaxError
from rlax_plugin.statistics import Estimate
from rlax_plugin.types import Group, Prompt, Rollout


def group(number: int, reward: float | None = 1.0) -> Group:
    tokens = np.array([4, 1], np.int32)
    logprob = np.array([-0.5, -1.0], np.float32)
    rollout = Rollout(number, 0, 2**63 + number, tokens, logprob, logprob,
                      np.array([0, 0], np.int32), "stop", reward=reward)  # fmt: skip
    prompt = Prompt("p", np.array([1], np.int32), "1", "one")
    return Group(number, 1, prompt, (rollout,), advantages=np.array([0.25]))


def steps(directory) -> list[int]:
    files = sorted(directory.glob("*.parquet"))
    return [s for file in files for s in pq.read_table(file)["step"].to_pylist()]


def test_rows_hold_what_was_drawn(tmp_path):
    writer = RolloutWriter(tmp_path / "rollouts", pytest.fail)
    writer.add(1, [(group(7), None), (group(8, None), "all rewards failed")])
    writer.close()
    first, second = pq.read_table(tmp_path / "rollouts/00000001-00000001.parquet").to_pylist()
    assert (first["group_id"], first["seed"], first["tokens"]) == (7, 2**63 + 7, [4, 1])
    assert (first["reward"], first["advantage"], first["refused"]) == (1.0, 0.25, None)
    assert (second["reward"], second["refused"]) == (None, "all rewards failed")


def test_steps_done_again_are_recorded_once(tmp_path):
    killed = RolloutWriter(tmp_path, pytest.fail, every=3)
    for step in (1, 2):
        killed.add(step, [(group(step), None)])
    killed.flush().result(10)  # before the checkpoint of step 2
    for step in (3, 4, 5):
        killed.add(step, [(group(step), None)])
    killed.close()
    (tmp_path / "00000006-00000008.tmp").write_text("half")
    again = RolloutWriter(tmp_path, pytest.fail, every=2)
    again.rewind(2)
    for step in (3, 4, 5):
        again.add(step, [(group(step), None)])
    again.close()
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_directory_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "rollouts").write_text("a file in the way")
    errors: list[BaseException] = []
    writer = RolloutWriter(tmp_path / "rollouts", errors.append)
    writer.add(1, [(group(1), None)])
    with pytest.raises(RlaxError, match="rollouts cannot be written"):
        writer.flush().result(10)
    writer.close()
    assert len(errors) == 1
    with pytest.raises(RlaxError, match="cannot be written"):
        write_json(tmp_path / "rollouts/x.json", {})


def test_metrics_are_cut_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": s, "loss": float(s)}) for s in (1, 2, 3, 4)]
    path.write_text("\n".join(lines) + '\n{"step": 5, "lo')  # killed while it wrote
    writer = MetricsWriter(path)
    assert [m["step"] for m in writer.rewind(2)] == [1, 2]
    writer.add(3, {"loss": 30.0})
    writer.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 30.0}]


def test_a_recorded_evaluation_belongs_to_its_version(tmp_path):
    estimate = Estimate(value=0.5, ci95=(0.4, 0.6), problems=8, n=4)
    record(tmp_path, "after", 10, {1: estimate})
    assert recorded(tmp_path, "after") == recorded(tmp_path, "after", version=10) == {1: estimate}
    assert recorded(tmp_path, "after", version=20) == {}
    assert recorded(tmp_path, "before") == {}
