"""Short runs whose processes are killed and frozen at events that their seeds choose."""

import os
import re

import pytest
from runs import CONFIG, HELPERS, plugins

from chaos.command import main

SETTINGS = (
    plugins("fickle"),
    "steps=40",
    "rlax.environment={name: fickle, share: 0}",
    "rlax.episodes={max_turns: 3, max_tokens: 24}",
    "rlax.rollouts.engine={name: scripted, latency_s: 0.02, token_s: 0.01, reads_memory: true}",
    "rlax.launcher={name: local, workers: 2, max_restarts: 100}",
    "rlax.trainer={name: bigram, checkpoint_every: 3, learning_rate: 0.1}",
    "rlax.curation.max_refill=50",
    "rlax.deadlines={lease_s: 3, drain_s: 5}",
)
# Each episode has three turns.
DETERMINISTIC = (
    "rlax.deterministic=true",
    "rlax.environment={name: calculator, begin: '', end: '', result: '0', after: '1', "
    "max_calls: 2}",
    "rlax.episodes={max_turns: 3, max_tokens: 30}",
)
# Its environment raises, hangs and ends its process at random, besides.
CONTINUED = (
    "rlax.environment={name: fickle, seed: 1, share: 0.03}",
    "rlax.deadlines={lease_s: 3, drain_s: 5, reward_s: 1.5, episode_s: 1.5}",
    "rlax.rollouts.on_new_weights=continue",
    "rlax.rollouts.progress_s=0.1",
    "rlax.batches={rows: 16, sequences_per_row: 4, tokens: 60}",
    "rlax.staleness.max_staleness=3",
    "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
    "rlax.objective.old_policy=proximal",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("more", "options"),
    [
        pytest.param(DETERMINISTIC, ("--seed", "1"), marks=pytest.mark.long),
        pytest.param(
            CONTINUED,
            ("--seed", "124", "--parameter-server", "--fault", "network", "--fault", "store"),
            marks=pytest.mark.ci,
        ),
    ],
    ids=["deterministic", "continued"],
)
def test_a_run_survives(more, options, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    words = (CONFIG, *SETTINGS, *more, "--kills", "4", "--out", str(tmp_path / "out"), *options)
    status = main(words)
    printed = capsys.readouterr()
    assert status == 0, printed
    (fell,) = re.findall(r"^seed \d+: survived in \d+ s; (\d) of 4 blows fell", printed.out, re.M)
    assert int(fell) >= 2 and "1 of 1 runs have survived" in printed.out
    assert main(words) == 2 and "is a run already: remove it" in capsys.readouterr().err
