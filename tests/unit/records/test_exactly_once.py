"""Whatever happens to a run, each of its groups is accounted for exactly once: see run_machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from run_machine import Run, RunOfEpisodes

SETTINGS = settings(
    max_examples=25,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestRun = Run.TestCase
TestRun.settings = SETTINGS
TestRunOfEpisodes = RunOfEpisodes.TestCase
TestRunOfEpisodes.settings = SETTINGS


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_keeps_little_is_resumed(seed: int) -> None:
    """The same, with many checkpoints and deaths: what is needed of the old samples is there."""
    rng = np.random.default_rng(seed)
    run = Run()
    bounds = [(1, 4), (2, 3), (1, 2)][seed % 3]
    run.begin(bounds, 1.5, deterministic=False, batches={}, screening={}, removes=True)
    for _ in range(16):
        run.a_batch_comes_if_all_goes_well(2)
        for group in sorted(run.run_.answers.open):  # some are ready long before they train
            if rng.random() < 0.6 and run.can_generate(group):
                run.act(run.run_.answers.generate, group, run.run_.latest, (0.0, 1.0), "b", 2)
                run.act(run.run_.answers.reward, group)
        if rng.random() < 0.8:
            run.the_trainer_saves_a_checkpoint(rng.random() < 0.7)
        if rng.random() < 0.4:
            run.the_process_dies(rng.random() < 0.5, rng.random() < 0.5, 0)
    run.teardown()
