"""A run of real processes with a chat template, stop strings, and the calculator as a tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from processes import finished, python_path
from rlax_environments import calculated
from runs import CONFIG, DEADLINE_S, HELPERS, plugins
from small_tokenizers import CHATML, characters

from rlax_plugin.api import Tokenizer
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.tokens.stopping import cut
from rlax_plugin.base.types import ScoredGroup, TrainBatch
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit
from rlax_plugin.training.objective.batches import build_arrays

STOP_STRINGS = ("=", "ab")


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(HELPERS))
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


def train(directory: Path, *more: str) -> tuple[int, str]:
    done = finished(
        "train",
        CONFIG,
        plugins("chat_numbers"),
        "steps=2",
        f"rlax.prompt_source={{name: chat_numbers, tokenizer: {directory / 'model'}}}",
        "rlax.rewards=[{name: digits}]",
        "rlax.curation.filters=[]",
        "rlax.environment={name: calculator, begin: '', end: '', result: '', after: '', "
        "max_calls: 2, role: tool}",
        "rlax.episodes.max_turns=3",
        "rlax.episodes.max_tokens=150",
        "rlax.rollouts.max_prompt_tokens=60",
        "rlax.rollouts.max_new_tokens=16",
        "rlax.evaluation.problems=0",
        *more,
        cwd=directory,
        timeout_s=DEADLINE_S,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def groups(directory: Path) -> list[ScoredGroup]:
    characters(directory / "model", template=CHATML)
    code, said = train(directory)
    assert code == 0, said
    files = RunFiles(directory / "runs/testing")
    assert audit(files).violation is None
    recorded = (journal.read_samples(files, segment) for segment, _ in journal.read(files))
    return [one.group for some in recorded for one in some if one.advantages is not None]


def test_every_turn_continues_what_was_sampled(directory: Path, groups: list[ScoredGroup]) -> None:
    tokenizer = Tokenizer.load(directory / "model", "tokenizer_path")
    ends: Counter[str] = Counter()
    assert len(groups) == 8
    for episode in (episode for group in groups for episode in group.episodes):
        (one,) = episode.trajectories
        assert len(one.turns) == 3
        for before, turn in zip(one.turns, one.turns[1:], strict=False):
            tokens = before.sampled.tokens
            said = cut(tokenizer.decode(tokens), STOP_STRINGS)
            value = calculated(said)
            told = [{"role": "tool", "content": "" if value is None else str(value)}]
            assert turn.given.tolist() == tokenizer.next_turn(told, tokens)
            whole = tokenizer.decode(tokens) != said
            last = "id" if tokens[-1] in tokenizer.stop_ids else before.sampled.finish
            ends["string" if whole and last == "stop" else str(last)] += 1
        assert not any(s in episode.text for s in STOP_STRINGS)
    assert ends.keys() == {"string", "id", "length"}, ends  # all three were seen


def test_given_tokens_do_not_train_and_sampled_ones_do(groups: list[ScoredGroup]) -> None:
    episode = groups[0].episodes[0]
    (one,) = episode.trajectories
    group = replace(groups[0], episodes=(episode,), scores=groups[0].scores[:1])
    batch = TrainBatch(2, (group,), (np.ones(1),))
    arrays = build_arrays(batch, rows=1, length=one.length)
    parts = [(tokens, t) for t in one.turns for tokens in (t.given, t.sampled.tokens)]
    trains = np.concatenate([np.full(len(p), p is t.sampled.tokens) for p, t in parts])
    assert arrays["rl_mask"][0, :-1].tolist() == trains[1:].tolist()
    sequence = np.concatenate([p for p, _ in parts])
    assert arrays["targets"][0, :-1].tolist() == sequence[1:].tolist()
    assert 10 < trains.sum() < len(sequence) - 40
