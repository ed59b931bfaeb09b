"""Programs in the sandbox play the episodes of a run; every token that trains was sampled."""

import json
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from processes import python_path
from runs import Run, lines, plugins
from test_harness_runs import HERE, check_tokens, rows_of_run

from rlax_plugin.api import sandbox_layers
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

pytestmark = pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")

PROGRAM = {
    "name": "program",
    "command": ["python", "agent_program.py"],
    "files": [str(HERE / "agent_program.py")],
    "time_s": 4,
    "memory_mib": 64,
    "disk_mib": 8,
    "processes": 8,
}
SETTINGS = (
    plugins("harness_parts", "rlax_http"),
    "steps=2",
    "rlax.prompt_source={name: talks, count: 12}",
    "rlax.rollouts.engine={name: logged, latency_s: 0.02}",
    "rlax.rollouts.max_prompt_tokens=16",
    "rlax.episodes={max_turns: 8, max_tokens: 24, max_trajectories: 4}",
    "rlax.rewards=[]",
    "rlax.curation.filters=[]",
    f"rlax.environment={json.dumps(PROGRAM)}",
    "rlax.evaluation={problems: 4, samples: 1, k: [1]}",
    "rlax.deadlines.episode_s=60",
)
AS_WRONG = {"over_time", "over_memory", "over_output", "crashed"}


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(HERE))


def test_programs_play_and_those_that_die_train_as_wrong(tmp_path: Path) -> None:
    run = Run(tmp_path, *SETTINGS)
    status, said = run.end()
    assert status == 0, said
    assert audit(RunFiles(run.dir)).violation is None
    rows = rows_of_run(run.dir)
    assert check_tokens(tmp_path, rows) > 100
    trained = [row for row in rows if row["state"] == "trained"]
    endings = {row["ending"]: row["reward"] for row in trained}
    assert set(endings) <= {"done", "length"} | AS_WRONG
    assert set(endings) & AS_WRONG and not [r for e, r in endings.items() if e in AS_WRONG and r]
    metrics = [json.loads(row["reward_metrics"] or "{}") for row in rows]
    assert max(one.get("turns", 0) for one in metrics) == 3
    assert max(one.get("requests_extended", 0) for one in metrics) == 2
    seeds = [seed for row in rows for seed in row["seeds"]]
    assert len(seeds) == len(set(seeds))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_a_trainer_that_ends_leaves_neither_processes_nor_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = Run(tmp_path, *SETTINGS)
    log = tmp_path / "sampled.jsonl"
    run.until(lambda: len(lines(log)) > 10, "turns")

    def programs() -> list[psutil.Process]:
        tree = psutil.Process(run.process.pid).children(recursive=True)
        return [one for one in tree if "agent_program.py" in " ".join(one.cmdline())]

    run.until(programs, "a program")
    tree = psutil.Process(run.process.pid).children(recursive=True)
    run.process.send_signal(number)
    run.process.wait(60)
    assert psutil.wait_procs(tree, 60)[1] == []
    run.end()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"runs", "sampled.jsonl"}


@pytest.mark.long
def test_programs_beside_hundreds_of_sessions_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 episodes at once, of which 32 are programs; of these 20 % are killed and 10 % fill up."""
    shares = {"killed": 0.2, "hanging": 0.05, "disk": 0.02, "memory": 0.02, "output": 0.01}
    (tmp_path / "shares.json").write_text(json.dumps(shares))
    monkeypatch.setenv("AT_ONCE", str(tmp_path / "at_once"))
    program = PROGRAM | {
        "name": "mixed",
        "files": [*PROGRAM["files"], str(tmp_path / "shares.json")],
    }
    run = Run(
        tmp_path,
        *SETTINGS,
        plugins("harness_parts", "rlax_http", "mixed_parts"),
        f"rlax.environment={json.dumps(program)}",
        "rlax.prompt_source={name: talks, count: 64}",
        "rlax.rollouts.group_size=16",
        "rlax.rollouts.groups_per_step=32",
        "rlax.rollouts.slots=512",
        "rlax.evaluation={problems: 0, samples: 1, k: [1]}",
        "rlax.deadlines.episode_s=240",
        "rlax.deadlines.group_s=240",
        "rlax.deadlines.batch_s=300",
    )
    peak = 0
    while run.process.poll() is None:
        with suppress(psutil.Error):
            tree = [run.process.pid, *psutil.Process(run.process.pid).children(recursive=True)]
            found = [psutil.Process(getattr(one, "pid", one)) for one in tree]
            peak = max(peak, sum(one.memory_info().rss for one in found))
        time.sleep(1)
    status, said = run.end()
    assert status == 0, said
    assert audit(RunFiles(run.dir)).violation is None
    rows = rows_of_run(run.dir)
    assert check_tokens(tmp_path, rows) > 1000
    seeds = [seed for row in rows for seed in row["seeds"]]
    assert len(seeds) == len(set(seeds))
    endings = Counter(row["ending"] for row in rows)
    at_once = int((tmp_path / "at_once").read_text())
    print(f"{len(rows)} rows, {dict(endings)}, {at_once} programs at once, {peak >> 20} MiB")
    assert set(endings) <= {"done", "length", "cut"} | AS_WRONG and at_once >= 16
