"""A run whose rewards end in many ways: what each sample says, what steps count, what trains."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml
from processes import finished
from runs import CONFIG, DEADLINE_S, lines

from rlax_plugin.base.endings import Ending

REWARDS = """\
import errno, os, signal, socket

from rlax_plugin.api import Ending, Score


def judge(completion, prompt):
    kind = sum(map(ord, completion)) % 8
    if kind == 0:  # nobody listens there
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            socket.create_connection(closed.getsockname(), timeout=30)
    if kind == 1:
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")
    if kind == 2:
        return Score(0.0, ending=Ending.OVER_MEMORY)
    if kind == 3:  # the first such sample is killed, as if from outside, in both tries
        sample = f"{prompt} {completion}"
        if not os.path.exists("killed"):
            with open("killed", "w") as killed:
                killed.write(sample)
        with open("killed") as killed:
            if killed.read() == sample:
                os.kill(os.getpid(), signal.SIGKILL)
    return float(kind % 2)
"""
WANTED = {"done", "length", "over_memory", "server_failed", "disk_full", "process_ended"}


def test_a_sample_has_its_ending_in_every_record(tmp_path: Path) -> None:
    content = yaml.safe_load(Path(CONFIG).read_text())
    content["rlax"]["rewards"] = [{"function": "r.py:judge"}]
    content["rlax"]["evaluation"] = {"problems": 0}
    content["rlax"]["reward_processes"] = 1
    (tmp_path / "r.py").write_text(REWARDS)
    (tmp_path / "c.yml").write_text(yaml.safe_dump(content | {"steps": 4}))
    done = finished("train", "c.yml", cwd=tmp_path, timeout_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr

    run = tmp_path / "runs/testing"
    rows = [
        row for file in run.glob("samples/**/*.parquet") for row in pq.read_table(file).to_pylist()
    ]
    endings = Counter(row["ending"] for row in rows)
    assert endings.keys() >= WANTED and "reward_failed" not in endings
    for row in rows:
        ending, advantage = Ending(row["ending"]), row.get("advantage")
        if ending.trains == "nothing":
            assert row["reward"] is None and row["reward_error"]
            assert row["state"] != "trained" or advantage == 0 or np.isnan(advantage)
        elif ending.trains == "as wrong":
            assert row["reward"] == 0.0
        else:
            assert row["reward"] is not None and ending == _last(row)

    samples = {(row["group"], row["sample"]): row["ending"] for row in rows}
    counted = Counter[str]()
    for step in lines(run / "metrics.jsonl"):
        named = {name: value for name, value in step.items() if name.startswith("episode_ended/")}
        counted.update({name.partition("/")[2]: int(value) for name, value in named.items()})
        unscored = sum(v for k, v in named.items() if Ending(k.partition("/")[2]).unscored)
        assert unscored == step["reward/errors"]
    recorded = Counter(samples.values())
    of_samples = Counter({k: v for k, v in counted.items() if not Ending(k).of_request})
    assert of_samples.total() > 30 and of_samples <= recorded  # the last ones have no step


def _last(row: dict) -> str:
    return "length" if row["finish"][-1] == "length" else "done"
