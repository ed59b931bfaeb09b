"""``rlax plan``: short runs of the toy, which are kept, and what cannot be planned."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import rlax
from processes import finished
from runs import CONFIG, DEADLINE_S
from waiting import wait_until

SLOW = "rlax.rollouts.engine={name: scripted, token_s: 0.02}"  # generation takes most of a step

pytestmark = pytest.mark.slow


def times(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.glob("*/metrics.jsonl")}


def test_a_plan_is_measured_once_and_ranks_what_it_has_not_measured(tmp_path: Path) -> None:
    out = tmp_path / "measured"
    words = ("plan", CONFIG, SLOW, "--workers", "2", "--steps", "12", "--out", str(out))
    first = finished(*words, "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    found: dict[str, Any] = json.loads(first.stdout)
    assert [one["arrangement"]["slots"] for one in found["measured"]] == [16, 8, 16]
    ranked = found["ranked"]
    assert len(ranked) > 4 and len({str(one["arrangement"]) for one in ranked}) == len(ranked)
    assert [one["step_s"] for one in ranked] == sorted(one["step_s"] for one in ranked)
    # Six tokens of .02 s for 16 samples or more: with four slots they take four turns.
    by_slots = {
        one["arrangement"]["slots"]: one["generate_s"]
        for one in ranked
        if one["arrangement"]["workers"] == 1
    }
    assert by_slots[4] > 1.1 * by_slots[16] > 0.1
    (left_out,) = found["left_out"]
    assert left_out.startswith("(j, k) = (1, 2) is left out: rlax.objective.preset")

    assert stat.S_IMODE(out.stat().st_mode) == 0o700  # it has the logs
    before = times(out)
    assert len(before) == 3
    again = rlax(*words)
    assert again.exit_code == 0, again.stderr
    assert times(out) == before
    fastest = " ".join(ranked[0]["arguments"])
    assert f"fastest with (j, k) = (1, 1), {ranked[0]['step_s']:.3g} s: {fastest}" in again.stdout

    for words_of_another, why in (
        ((*words, "rlax.rollouts.group_size=2"), "was not made with rlax.rollouts.group_size=2"),
        ((*words[:-4], "--steps", "13", *words[-2:]), "was not made with steps=13"),
    ):
        other = rlax(*words_of_another)
        assert other.exit_code == 2 and why in other.stderr
    (out / "workers1-slots16-parts1-j1-k1.json").unlink()
    foreign = rlax(*words)
    assert foreign.exit_code == 2 and "that is no run of a plan" in foreign.stderr
    assert times(out) == before


def test_an_interrupted_plan_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def even(completion): return len(completion) % 2\n")
    (tmp_path / "run.yml").write_text(Path(CONFIG).read_text())
    out = tmp_path / "measured"
    of_a_file = "rlax.rewards=[{function: 'rewards.py:even'}]"  # beside the config, not beside out
    words = ("plan", "run.yml", of_a_file, SLOW, "--workers", "1", "--steps", "24")
    words += ("--out", str(out), "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "rlax_plugin", *words],
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        metrics = out / "workers1-slots16-parts1-j1-k1" / "metrics.jsonl"
        wait_until(
            lambda: metrics.exists() and metrics.stat().st_size, "a step", limit_s=DEADLINE_S
        )
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        wait_until(lambda: not lives(process.pid), "the end of its group")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    assert not json.loads((out / "workers1-slots16-parts1-j1-k1.json").read_text()).get("usage")
    done = finished(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Not one of its steps trains what the interrupted run has recorded, without generating it.
    assert all(one["generate_s"] > 0.1 for one in json.loads(done.stdout)["measured"])


def lives(group: int) -> bool:
    """True if there is a process in a group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    broken = "rlax.rollouts.engine={name: scripted, broken: true}"
    words = ("plan", CONFIG, broken, "rlax.deadlines.startup_s=5", "--workers", "1")
    failed = finished(*words, "--out", str(tmp_path / "measured"), cwd=tmp_path)
    assert failed.returncode == 1 and failed.stderr.startswith("error: rlax train failed: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--staleness", "1"), "--staleness = '1': must be a pair j,k such as 1,2"),
        (("--staleness", "²,3"), "--staleness = '²,3': must be a pair j,k such as 1,2"),
        (("--staleness", "2,1"), "--staleness = '2,1': must be a pair j,k with 1 <= j <= k"),
        (("--staleness", "1,2"), "rlax.objective.preset = 'grpo': has no correction"),
        (("--steps", "6"), "--steps = 6: must be at least 7: the first 3 do not count"),
        (("--memory-gib", "nan"), "--memory-gib = nan: must be a positive number"),
        (("--out", "gs://bucket/x"), "--out = 'gs://bucket/x': must be a folder of this machine"),
        (("rlax.launcher={name: static}",), "rlax.launcher = 'static': is not planned for"),
        (("rlax.deterministic=true",), "rlax.deterministic = True: is not planned for"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words: tuple[str, ...], message: str) -> None:
    result = rlax("plan", CONFIG, *words)
    assert result.exit_code == 2 and result.stderr.startswith(f"error: {message}")
