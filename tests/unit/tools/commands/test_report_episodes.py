"""What the report makes of episodes of several turns and trajectories."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import ScoredGroup, TrainBatch, Trajectory, Turn
from rlax_plugin.run.state import journal, samples
from rlax_plugin.testing import make_episode, make_group, make_prompt, make_sampled
from rlax_plugin.tools.commands.report import charts
from rlax_plugin.tools.commands.report.rollouts import Rollouts, read_rollouts
from rlax_plugin.tools.commands.report.run import RunData, no_progress

EVIL = "\u202e\x1b[2J"


def turn(given: int, sampled: int, **changes: Any) -> Turn:
    made = make_sampled(sampled, seed=given, **changes)
    return Turn(np.arange(40, 40 + given, dtype=np.int32), made)


def group() -> ScoredGroup:
    """Of one turn; of three in two trajectories, paid by turn; of two, cut."""
    prompt = make_prompt("12")
    alone = make_episode(make_sampled(2), prompt=prompt, text="a")
    first = Turn(prompt.tokens, make_sampled(3, workers=("w0",)))
    long = make_episode(first, turn(2, 1, workers=("w1",)), index=1, text="end")
    summary = Trajectory((turn(4, 2, finish="length", version=1),))
    long = replace(
        long, trajectories=(*long.trajectories, summary), texts=("s0", "g1", "s1", "g2", "s2")
    )
    cut = make_episode(first, turn(1, 1), index=2, ended="cut", texts=("s0", f"g{EVIL}", "s1"))
    made = make_group([1.0, 0.75, 0.0], prompt=prompt)
    paid = (np.array([0.0, 0.0, 0.25]), np.array([0.5]), np.zeros(2))
    one, two, three = made.scores
    scores = (one, replace(two, token_rewards=paid, metrics={"found": 1.0}), three)
    return replace(made, episodes=(alone, long, cut), scores=scores)


def read(
    tmp_path, *groups: ScoredGroup, advantages: np.ndarray | None = None
) -> tuple[RunFiles, Rollouts]:
    files = RunFiles(tmp_path)
    zeros = [np.zeros(len(g.episodes)) for g in groups]
    batch = TrainBatch(1, groups, tuple(zeros if advantages is None else [advantages]))
    files.put(journal.samples_name(1), samples.to_parquet(1, samples.of_batch(batch)))
    return files, read_rollouts(files, RunData("run", ""), no_progress)


def test_an_episode_is_one_rollout_whatever_it_consists_of(tmp_path):
    _, found = read(tmp_path, group())
    assert found.shown == found.recorded == 3
    columns = json.loads(found.index)["columns"]
    assert columns["sample"] == [0, 1, 2] and columns["tokens"] == [2, 6, 4]
    assert columns["reward"] == [1.0, 0.75, 0.0]
    assert columns["worker"] == ["w0", "w0+w1", "w0"]
    assert columns["finish"] == ["done", "length", "cut"]
    assert (columns["oldest"][1], columns["newest"][1]) == (0, 1)
    assert columns["figures"] == [None, {"found": 1.0}, None]
    (chunk,) = map(json.loads, found.chunks)
    assert [len(tokens) for tokens in chunk["tokens"]] == [2, 6, 4]
    assert chunk["versions"][1] == [0, 4, 1, 2]


def test_advantages_of_tokens_are_shown_by_their_mean(tmp_path):
    by_token = np.array([[1.0, 2.0, 0, 0, 0, 0], [1, 1, 1, 0, -3, 6], [2, 2, 2, 2, 0, 0]])
    _, found = read(tmp_path, group(), advantages=by_token)
    assert json.loads(found.index)["columns"]["advantage"] == [1.5, 1.0, 2.0]
    _, found = read(tmp_path, group(), advantages=np.array([0.5, 0.0, -0.5]))
    assert json.loads(found.index)["columns"]["advantage"] == [0.5, 0.0, -0.5]


def test_its_turns_have_what_was_given_and_what_was_sampled(tmp_path):
    _, found = read(tmp_path, group())
    alone, long, cut = json.loads(found.index)["columns"]["turns"]
    assert alone is None
    assert long == [
        ["", "s0", 3, "stop", 0.25, 0],
        ["g1", "s1", 1, "stop", 0.5, 0],
        ["g2", "s2", 2, "length", 0.0, 1],
    ]
    assert cut == [["", "s0", 3, "stop", None, 0], ["g\\u202e\\x1b[2J", "s1", 1, "stop", None, 0]]


def test_what_was_given_first_is_shown_where_it_is_not_the_prompt(tmp_path):
    prompt = make_prompt("secret")
    first = Turn(np.array([9, 8], np.int32), make_sampled(2))
    made = replace(make_group([1.0], prompt=prompt), episodes=(make_episode(first),))
    _, found = read(tmp_path, made, make_group([0.0], id=1))
    prompts = json.loads(found.index)["prompts"]
    # Without the run's prompt source only the numbers of tokens are known.
    assert [one.get("asked") for one in prompts] == ["tokens 9, 8", None]


@pytest.mark.parametrize("several", [False, True])
def test_turns_per_episode_have_a_chart_where_there_may_be_several(several):
    metrics = {"step": [1.0, 2.0], "reward/mean": [0.0, 1.0]}
    if several:
        metrics |= {"episode/turns_mean": [2.5, 2.0], "episode/given_tokens": [0.0, 1.0]}
    found = charts.sections([RunData("run", "", metrics=metrics)])
    titles = {chart.title: chart for section in found for chart in section.charts}
    assert ("Turns per episode" in titles) == several
    if several:
        assert list(titles["Turns per episode"].figure.data[-1].y) == [2.5, 2.0]
        assert "episode/given_tokens" in titles and "episode/turns_mean" not in titles


@pytest.mark.parametrize(
    "endings",
    [
        {"done": [4.0, 3.0]},
        {"done": [4.0, 3.0], "crashed": [np.nan, 1.0]},
        {"length": [4.0, 3.0]},
    ],
)
def test_endings_have_a_chart_where_not_every_sample_is_done(endings):
    metrics = {"step": [1.0, 2.0], "reward/mean": [0.0, 1.0]}
    metrics |= {f"episode_ended/{name}": counts for name, counts in endings.items()}
    found = charts.sections([RunData("run", "", metrics=metrics)])
    titles = {chart.title: chart for section in found for chart in section.charts}
    chart = titles.get("How samples and requests ended")
    assert (chart is not None) == (endings.keys() != {"done"})
    if chart is not None:
        lines = {line.name: list(line.y) for line in chart.figure.data}
        assert lines == {name: np.nan_to_num(counts).tolist() for name, counts in endings.items()}
