"""Spare groups are cancelled in a run of real processes, which is killed meanwhile."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import doors
from runs import HELPERS, TWO_WORKERS, Run, held, kill_group

from rlax_plugin.commands.audit import audit
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc

STEPS, GROUPS, SIZE, TOKENS = 8, 4, 4, 20
SETTINGS = (
    f"steps={STEPS}",
    TWO_WORKERS,
    "rlax.curation.oversample=2",
    "rlax.curation.filters=[]",
    "rlax.evaluation.problems=0",
    "rlax.rollouts.ignore_stop=true",  # every sample takes all of its tokens
    f"rlax.rollouts.max_new_tokens={TOKENS}",
    "rlax.rollouts.slots=8",  # both workers together generate the groups of one batch at once
    "rlax.rollouts.engine={name: scripted, token_s: 0.01}",
    "rlax.deadlines.heartbeat_s=0.15",  # less than a sample takes
    "rlax.trainer.checkpoint_every=3",
)


def recorded(run: Run) -> list[ev.Event]:
    """Everything that the ledger of a live run has."""
    with closing(sqlite3.connect(run.dir / "ledger.sqlite", timeout=60)) as db:
        rows = db.execute("SELECT body FROM events ORDER BY id").fetchall()
    return [ev.decode(json.loads(body)) for (body,) in rows]


def cancelled(events: list[ev.Event]) -> list[ev.Dropped]:
    return [e for e in events if isinstance(e, ev.Dropped) and e.reason == "no longer needed"]


def tokens_of_workers(run: Run) -> int:
    """What their engines have generated, by their own counters; all of them are idle."""
    total = 0
    for log in run.dir.glob("logs/local-*.log"):
        (address,) = re.findall(r"serves on (\S+)", log.read_text())
        with doors.channel_to(address) as channel:
            figures = rpc.RolloutStub(channel).Health(pb.HealthRequest(), timeout=60).figures
        assert figures["active"] == figures["waiting"] == 0
        total += int(figures["tokens_total"])
    return total


def test_workers_stop_generating_what_no_batch_needs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS)
    go = tmp_path / "go"
    clients = "rlax.network.serve_clients=true"
    run = Run(tmp_path, *SETTINGS, *held({6: go}), clients)

    def at_rest() -> list[ev.Event]:
        """What is recorded, once step 6 is held and all that may be generated for it is there."""
        if len(run.steps()) < 5 or not (run.dir / "ledger.sqlite").exists():
            return []
        events = recorded(run)
        issued = sum(len(e.prompts) for e in events if isinstance(e, ev.Issued))
        scored = sum(isinstance(e, ev.Scored) for e in events)
        dropped = sum(isinstance(e, ev.Dropped) for e in events)
        too_stale = dropped - len(cancelled(events))
        # All that may be outstanding waits for its batch.
        full = scored - too_stale - 5 * GROUPS == 2 * GROUPS
        return events if full and issued == scored + len(cancelled(events)) else []

    events = run.until(at_rest, "the spares of step 6")
    spared = cancelled(events)
    scored = sum(isinstance(e, ev.Scored) for e in events)
    saved = sum(one.tokens for one in spared)
    assert spared and saved > 0
    assert all(0 < one.samples <= SIZE for one in spared)
    # All samples take the same number of tokens, so that what is saved is known to the token.
    assert tokens_of_workers(run) == (scored + len(spared)) * SIZE * TOKENS - saved
    # What a step reports is what happened before its batch.
    last = max(i for i, event in enumerate(events) if isinstance(event, ev.Trained))
    before, steps = cancelled(events[:last]), run.steps()[:5]
    assert sum(step["curation/groups_cancelled"] for step in steps) == len(before)
    assert sum(step["curation/samples_saved"] for step in steps) == sum(e.samples for e in before)
    assert sum(step["curation/tokens_saved"] for step in steps) == sum(e.tokens for e in before)
    go.touch()
    run.until(lambda: len(cancelled(recorded(run))) > len(spared), "another cancelled group")
    kill_group(run.process)
    run.process.communicate()

    again = Run(tmp_path, *SETTINGS, *held({6: go}), clients)
    status, out = again.end()
    assert status == 0, out
    report = audit(RunFiles(again.dir))
    assert report.clean, report.violation
    assert report.figures.trained == STEPS * GROUPS and report.figures.restarts == 1
    summary = again.summary()
    told = [e for segment, _ in journal.read(RunFiles(again.dir)) for e in segment.events]
    assert summary["groups_dropped"]["no longer needed"] == len(cancelled(told)) > len(spared)
    assert summary["tokens_saved"] == sum(one.tokens for one in cancelled(told)) > saved
    assert summary["samples_saved"] == sum(one.samples for one in cancelled(told))
    print("cancelled", len(cancelled(told)), "groups;", summary["tokens_saved"], "tokens saved;",
          summary["tokens_generated"], "tokens generated and recorded")  # fmt: skip
