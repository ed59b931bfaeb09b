"""Groups take as long as they need while they come further, in whole runs of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import Run

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

TOKENS, TOKEN_S = 10, 0.1  # a group's own time is their product
STEPS = 5
SETTINGS = (
    f"steps={STEPS}",
    "rlax.rollouts.on_new_weights=finish",
    "rlax.rollouts.ignore_stop=true",
    f"rlax.rollouts.max_new_tokens={TOKENS}",
    "rlax.rollouts.slots=128",  # more than is ever asked for at once: no group waits for a slot
    "rlax.curation.filters=[]",
    "rlax.evaluation.problems=0",
    "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    "rlax.objective.old_policy=proximal",
    f"rlax.deadlines.group_s={1.8 * TOKENS * TOKEN_S}",
    "rlax.deadlines.heartbeat_s=0.1",
    "rlax.deadlines.heartbeats_lost=600",
)
ENGINES = {
    "scripted": (f"rlax.rollouts.engine={{name: scripted, token_s: {TOKEN_S}, swap_waits: true}}",),
    "jetstream": (
        f"rlax.rollouts.engine={{name: bigram_slots, step_s: {TOKEN_S}}}",
        "rlax.plugins=[rlax_plugin.testing, bigram_slots]",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("engine", "max_staleness"), [("scripted", 2), ("jetstream", 4)])
def test_nothing_is_generated_again_while_a_swap_of_weights_waits(
    tmp_path, monkeypatch, engine, max_staleness
):
    """A group may wait for the running ones to end and then take its own time, 2 in all."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    run = Run(
        tmp_path, *SETTINGS, *ENGINES[engine], f"rlax.staleness.max_staleness={max_staleness}"
    )
    status, out = run.end()
    assert status == 0, out
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
    summary = run.summary()
    assert summary["steps"] == STEPS and 1 < summary["max_staleness_seen"] <= max_staleness
    assert summary["groups_reissued"] == 0
    assert {row["attempt"] for row in run.samples()} == {1}
