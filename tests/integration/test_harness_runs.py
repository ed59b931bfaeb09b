"""A program plays episodes over HTTP, and every token that trains is what the engine sampled."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from processes import finished, python_path
from runs import CONFIG, DEADLINE_S, Run, command, lines, plugins

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state.read_samples import rows_of
from rlax_plugin.tools.commands.audit import audit

HERE = Path(__file__).parent
SETTINGS = (
    plugins("harness_parts", "rlax_http"),
    "steps=4",
    "rlax.prompt_source={name: talks, count: 12}",
    "rlax.rollouts.engine={name: logged, latency_s: 0.02}",
    "rlax.rollouts.max_prompt_tokens=16",
    "rlax.episodes={max_turns: 8, max_tokens: 24, max_trajectories: 4}",
    "rlax.rewards=[]",
    "rlax.curation.filters=[]",
    "rlax.trainer.checkpoint_every=2",
    "rlax.evaluation={problems: 4, samples: 1, k: [1]}",
    "rlax.deadlines.episode_s=10",
)


@contextmanager
def harness(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The program, and its port."""
    command = [sys.executable, str(HERE / "harness_program.py"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield program, int(program.stdout.readline())
        finally:
            program.kill()


def played_at(port: int) -> str:
    return f"rlax.environment={{name: http, url: 'http://127.0.0.1:{port}/play'}}"


def train(directory: Path, port: int, kill_at: str = "") -> str:
    done = finished(
        *("train", CONFIG, *SETTINGS, played_at(port)),
        cwd=directory,
        kill_at=kill_at,
        timeout_s=DEADLINE_S,
        PYTHONPATH=python_path(HERE),
    )
    assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stdout + done.stderr
    return done.stdout


def check_tokens(directory: Path, rows: list[dict[str, Any]]) -> int:
    """Compares each turn with the engine's log, by its seed; returns the number of tokens."""
    lines = (directory / "sampled.jsonl").read_text().splitlines()
    logged: dict[int, list[dict[str, Any]]] = {}
    for one in map(json.loads, lines):
        logged.setdefault(one["seed"], []).append(one)
    count = 0
    for row in rows:
        context: list[int] = []
        given, tokens, logprobs = row["given"], row["tokens"], row["logprobs"]
        if not row["seeds"]:  # the episode failed before its first turn
            assert not given and not tokens and row["reward"] is None
            continue
        lengths = row["given_lengths"] or [len(given)], row["sampled_lengths"] or [len(tokens)]
        for seed, before, after in zip(row["seeds"], *lengths, strict=True):
            context += given[:before]
            sampled, nats = tokens[:after], np.array(logprobs[:after], np.float32)
            said = {"seed": seed, "context": context, "tokens": sampled}
            assert said | {"logprobs": nats.tobytes().hex()} in logged[seed]
            context = context + sampled
            given, tokens, logprobs = given[before:], tokens[after:], logprobs[after:]
            count += after
        assert not given and not tokens
    return count


def rows_of_run(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.glob("samples/*/*.parquet"))
    return [row for file in files for row in rows_of(file.read_bytes(), file.name).to_pylist()]


@pytest.mark.ci
def test_a_trainer_killed_while_a_program_plays_goes_on_and_trains_what_was_sampled(
    tmp_path: Path,
) -> None:
    with harness() as (_, port):
        train(tmp_path, port, kill_at="turn-sampled:90")
        train(tmp_path, port)
    directory = tmp_path / "runs/testing"
    report = audit(RunFiles(directory))
    assert report.violation is None, report.violation
    rows = rows_of_run(directory)
    assert check_tokens(tmp_path, rows) > 300
    trained = [row for row in rows if row["state"] == "trained"]
    assert {row["step"] for row in trained} == {1, 2, 3, 4}
    assert {row["trajectory"] for row in trained} >= {0, 1}  # compactions and sub-agents
    assert max(len(row["seeds"]) for row in trained) == 3
    metrics = [json.loads(row["reward_metrics"] or "{}") for row in rows]
    kinds = {name for one in metrics for name, count in one.items() if count}
    assert kinds >= {"requests_begun", "requests_extended", "requests_retried", "requests"}
    assert {row["reward"] for row in trained} >= {0.0, 1.0}
    # What was sent again was sampled once: there are as many turns as the program has answers.
    turns: dict[tuple[int, int], int] = {}
    answers: dict[tuple[int, int], float] = {}
    for row, found in zip(rows, metrics, strict=True):
        episode = row["group"], row["sample"]
        turns[episode] = turns.get(episode, 0) + len(row["seeds"])
        if "requests" in found:
            answers[episode] = found["requests"]
    assert len(answers) > 20 and answers.items() <= turns.items()


@pytest.mark.ci
def test_a_reward_process_killed_while_a_program_plays_costs_no_episode_and_trains_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(HERE))
    log = tmp_path / "sampled.jsonl"
    with harness() as (_, port):
        run = Run(tmp_path, *SETTINGS, "steps=2", played_at(port))
        run.until(lambda: len(lines(log)) > 20, "turns")
        children = psutil.Process(run.process.pid).children()
        (playing,) = [one for one in children if "rlax_plugin.run.programs.reward" in command(one)]
        playing.kill()
        status, said = run.end()
    assert status == 0 and "the reward process of rlax.environment (http) was ended by" in said
    report = audit(RunFiles(run.dir))
    assert report.violation is None, report.violation
    rows = rows_of_run(run.dir)
    assert check_tokens(tmp_path, rows) > 100
    seeds = [seed for row in rows for seed in row["seeds"]]
    assert len(seeds) == len(set(seeds))
    assert "process_ended" not in {row["ending"] for row in rows}  # all were played again
