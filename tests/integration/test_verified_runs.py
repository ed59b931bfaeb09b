"""Runs that are scored by a server, which dies for a while; and where their key is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_server import Asked, serving
from runs import Run, command, rows
from waiting import wait_until

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles
from rlax_plugin.testing.task import encode

KEY = "rlax-test-key-4f9a1c77e2d05b38"
RUN = (
    "rlax.evaluation.problems=0",
    "rlax.launcher.workers=1",
    "rlax.curation={filters: [], max_refill: 2}",
    "rlax.trainer={name: bigram, train_s: 0.05, checkpoint_every: 2}",
    "rlax.deadlines.reward_s=10",
)


def even(asked: Asked) -> None:
    """What the reward ``even`` gives; it repeats the key wherever it can."""
    if asked.headers.get("Authorization") != f"Bearer {KEY}":
        asked.reply(b"who are you?", 401)
        return

    def reward(sample: Any) -> float:
        return float(int(encode(sample["completion"][:1] or "1")[0]) % 2 == 0)

    repeated = {"metrics": {f"x{KEY}"[:60]: 1}}
    asked.json([{"reward": reward(one)} | repeated for one in asked.body])


def repeats_the_key(asked: Asked) -> None:
    asked.reply(asked.headers.get("Authorization", "").encode() * 3, 500)


def secret_places(run: Run) -> list[Path]:
    """Files of a run that have the key."""
    files = [path for path in run.dir.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.long
def test_an_outage_is_waited_for_then_ends_the_run_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("VERIFIER_KEY", KEY)
    with serving(even) as server:
        port = server.server_port
        reward = (
            f"rlax.rewards=[{{name: http_verifier, url: '{server.url}/score', batch_size: 4, "
            "key_env: VERIFIER_KEY}]"
        )
        run = Run(tmp_path, *RUN, reward, "steps=10000")
        run.until(lambda: len(run.steps()) >= 2, "two steps")
        commands = [" ".join(command(one)) for one in _family(run)]
        assert len(commands) >= 3 and not any(KEY in one for one in commands)

    # For less than reward_s: nothing is lost.
    run.until(lambda: "cannot be asked" in _log(run), "the outage")
    with serving(repeats_the_key, port=port) as wrong:
        wait_until(lambda: wrong.asked, "another question of the run")
    before = len(run.steps())
    with serving(even, port=port):
        run.until(lambda: len(run.steps()) >= before + 2, "two steps more")
    assert "answers again" in _log(run)
    assert all(step["reward/errors"] == 0 for step in run.steps())

    # For longer: the run ends, and says why.
    status, out = run.end()
    said = " ".join(out.split())
    assert status not in (0, None) and "Traceback" not in out, out
    error = "rlax.rewards.0 (http_verifier): ServerError: http://127.0.0.1:"
    assert f"rewards fail, such as: {error}" in said, out
    assert "gave no answer within 9 s" in said and "logs/rewards.log says more" in said, out
    trained = len(run.steps())

    # The same command goes on where it was.
    with serving(even, port=port):
        status, again = Run(tmp_path, *RUN, reward, f"steps={trained + 2}").end()
    assert status == 0, again
    assert [step["step"] for step in run.steps()] == list(range(1, trained + 3))
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
    # What was not scored has no reward: it is not 0.
    unscored = [row for row in rows(run.dir) if row["reward_error"]]
    assert unscored and all(row["reward"] is None for row in unscored)
    assert KEY not in out + again
    assert secret_places(run) == []


def test_a_run_without_its_key_does_not_start(tmp_path, monkeypatch):
    monkeypatch.delenv("VERIFIER_KEY", raising=False)
    reward = (
        "rlax.rewards=[{name: http_verifier, url: 'http://127.0.0.1:1/', key_env: VERIFIER_KEY}]"
    )
    run = Run(tmp_path, *RUN, reward)
    status, out = run.end()
    said = " ".join(out.split())
    assert status == 2, out
    assert "rlax.rewards.0.key_env = 'VERIFIER_KEY': this environment variable is not set" in said
    assert not run.dir.exists()


def _family(run: Run) -> list[psutil.Process]:
    process = psutil.Process(run.process.pid)
    return [process, *process.children(recursive=True)]


def _log(run: Run) -> str:
    return (run.dir / "logs/rewards.log").read_text()
