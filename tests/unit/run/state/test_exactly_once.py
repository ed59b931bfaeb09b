"""Whatever happens to a run, each of its groups is accounted for exactly once: see run_machine."""

import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, settings
from run_machine import Run, RunOfEpisodes, RunOfOwnBeginnings

from rlax_plugin.base.endings import Ending

SETTINGS = settings(
    max_examples=examples(25), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestRun = Run.TestCase
TestRun.settings = SETTINGS
TestRunOfEpisodes = RunOfEpisodes.TestCase
TestRunOfEpisodes.settings = SETTINGS
TestRunOfOwnBeginnings = RunOfOwnBeginnings.TestCase
TestRunOfOwnBeginnings.settings = SETTINGS
TestRun.pytestmark = TestRunOfEpisodes.pytestmark = [pytest.mark.property]
TestRunOfOwnBeginnings.pytestmark = [pytest.mark.property]


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


@pytest.mark.parametrize("seed", range(4))
def test_spares_that_workers_give_up_are_accounted_for(seed: int) -> None:
    """Batches are complete while workers generate what is too old for the next one."""
    rng = np.random.default_rng(seed)
    run = Run()
    screening = {"pilots": 1, "min_mixed_probability": 0.25} if seed % 2 else {}
    run.begin((1, 1), 3.0, deterministic=False, batches={}, screening=screening, removes=True)
    for _ in range(12):
        while run.unpublished:
            run.a_version_is_published()
        step, answers = run.step, run.run_.answers
        run.the_trainer_asks_for_a_batch()
        while run.step == step:  # the oldest groups, one after the other
            run.workers_begin_all_groups(newest=True)
            group = min(answers.open)
            run.act(answers.generate, group, run.run_.latest, (0.0, 1.0), "a", 2)
            run.act(run.run_.answers.reward, group)
            run.look()
        for group in answers.too_old():
            if rng.random() < 0.7:  # else its worker is too slow to hear of it
                run.act(answers.give_up, group)
        if rng.random() < 0.3:
            run.the_trainer_saves_a_checkpoint(True)
            run.the_process_dies(rng.random() < 0.5, False, 0)
    assert run.run_.run_state.totals.dropped[Ending.NOT_NEEDED] > 3
    run.teardown()
