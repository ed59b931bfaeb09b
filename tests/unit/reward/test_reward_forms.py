"""What rewards may be and may return: seen tokens, groups and metadata; metrics, token rewards."""

import numpy as np
import pytest
from reward_pools import episode, episodes, prompt, reason, sampled, section, totals, with_pool
from reward_pools import write_plugin as write

from rlax_plugin.base.types import Score, Turn

PLUGIN = r"""
import os, time

def there(folder, count):
    "Waits until so many calls are under way."
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/{os.getpid()}", "w").close()
    while len(os.listdir(folder)) < count:
        time.sleep(0.01)

def together(prompt, completion):
    there("here", int(completion))
    return float(os.getpid())

class Turns:
    def score(self, prompt, episode):
        turns = [turn for one in episode.trajectories for turn in one.turns]
        assert turns[0].given.tolist() == prompt.tokens.tolist() == [1, 2, 3]
        assert all(len(turn.sampled.logprobs) == 0 for turn in turns)
        assert episode.ended == "done" and episode.index == prompt.metadata.get("index", 0)
        lengths = [len(turn.sampled.tokens) for turn in turns]
        tokens = [np.arange(n) + 0.5 for n in lengths]
        if episode.text == "wrong":
            tokens.pop()
        metrics = {"turns": len(turns), "cut": turns[-1].sampled.finish == "length"}
        return Score(sum(lengths), metrics=metrics, token_rewards=tuple(tokens))

class Best:
    "1 for the longest completion of the group."
    def score_group(self, prompt, episodes):
        if episodes[0].text == "none":
            return []
        lengths = [len(one.text) for one in episodes]
        found = [float(n == max(lengths)) for n in lengths]
        return [float("nan") if one.text == "nan" else f for one, f in zip(episodes, found)]

def fails(prompt, completion):
    if completion == "fails":
        raise ValueError("no")
    return Score(0.25, metrics={"turns": 10, "level": prompt.metadata.get("level", 0)})

import numpy as np

@hookimpl
def rlax_register_reward():
    parts = {"together": together, "turns": Turns(), "best": Best(), "fails": fails}
    return {
        name: Extension(NoOptions, lambda config, context, part=part: part)
        for name, part in parts.items()
    }
"""


@pytest.fixture(autouse=True)
def _plugin(tmp_path, monkeypatch):
    write(tmp_path, monkeypatch, PLUGIN)


def test_the_samples_of_one_group_are_scored_in_all_processes_at_once():
    async def work(pool):
        found = totals(await pool.score(prompt(), episodes(*["4"] * 4)))
        assert len(set(found)) == 4 and pool.replaced == 0

    with_pool(section("together", reward_processes=4, reward_limit=1e9), work)


def test_a_reward_sees_turns_and_pays_tokens_and_several_add_up():
    turns = [
        Turn(prompt().tokens, sampled(4, 5)),
        Turn(np.array([9], np.int32), sampled(6, 7, 8, finish="length")),
    ]

    async def work(pool):
        assert pool.needs.tokens and not pool.needs.group and not pool.needs.waits
        given = [episode("a", 0, turns), episode("wrong", 0, turns), episode("fails", 0, turns)]
        found, wrong, failed = await pool.score(prompt(level=3), given)
        assert isinstance(found, Score)
        assert found.total == 10.25 and found.parts == (5.0, 0.25, 5.0)
        assert found.metrics == {"turns": 14.0, "cut": 2.0, "level": 3.0}
        assert [one.tolist() for one in found.token_rewards] == [[1.0, 3.0], [1.0, 3.0, 5.0]]
        assert found.token_rewards[0].dtype == np.float64
        assert "ValueError: token_rewards have the shapes [(2,)], but" in reason(wrong)
        assert reason(failed).startswith("rlax.rewards.1 (fails): ValueError: no (line ")

    with_pool(section("turns", "fails", "turns"), work)


def test_a_reward_sees_the_whole_group_and_fails_for_one_or_for_all():
    async def work(pool):
        assert pool.needs.group
        found = await pool.score(prompt(), episodes("a", "ccc", "nan", "fails"))
        assert totals(found)[:2] == [0.25, 0.25] and found[1].parts == (0.0, 0.25)
        assert "the reward is nan" in reason(found[2])
        assert "ValueError: no" in reason(found[3])
        none = await pool.score(prompt(), episodes("none", "b"))
        assert all("it returned 0 scores for 2 episodes" in reason(one) for one in none)
        # In the other process, and at the same time.
        assert totals(await pool.score(prompt(), episodes("a"))) == [1.25]

    with_pool(section("best", "fails", reward_processes=2), work)


def test_metadata_that_json_cannot_hold_ends_the_run_with_its_prompt():
    async def work(pool):
        with pytest.raises(Exception, match="prompt 'p' has metadata that JSON cannot hold"):
            await pool.score(prompt(level=object()), episodes("a"))

    with_pool(section("fails"), work)
