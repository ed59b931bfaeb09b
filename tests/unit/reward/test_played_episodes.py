"""Episodes in reward processes, and environments that do everything wrong."""

import asyncio
import time
from pathlib import Path

import pytest
from late_rewards import HeldClock, late_at_once, noted
from played import Played
from reward_pools import (
    episodes,
    prompt,
    reason,
    section,
    shared_pool,
    there,
    totals,
    with_pool,
    write_plugin,
)
from waiting import eventually

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.ports.environment import Outcome

PLUGIN = r"""
import asyncio, os, subprocess, sys, time

def hanging(text):
    with open("hanging.tmp", "w") as file:
        file.write(text)
    os.rename("hanging.tmp", "hanging")

class Wild(Environment):
    def first(self, prompt):
        return prompt.tokens

    async def play(self, prompt, session):
        try:
            text = session.answer.text
        except ValueError as error:
            text = "begins " + str(error)
        how = text.partition(" ")[0]
        return await getattr(self, how)(prompt, session, text)

    async def turns(self, prompt, session, text):
        count = int(text.split()[1])
        seen = [(session.turns_left, session.tokens_left)]
        for i in range(count):
            answer = await session.sample(f"{i}:{session.answer.text}")
            assert answer.finish == "stop" and answer.tokens.tolist() == [7, 8]
            seen.append((session.turns_left, session.tokens_left))
        return Outcome(
            rewards=tuple(float(i) for i in range(count + 1)),
            metrics={"turns": count, "level": prompt.metadata["level"], "left": seen[-1][0]},
        )

    async def begins(self, prompt, session, text):
        answer = await session.sample("a", most_tokens=3, tools=[{"name": "f"}])
        read = f"{answer.logprobs.tolist()} {answer.version} {text}"
        return Outcome(read, rewards=(1.0,), reward=0.5)

    async def tokens(self, prompt, session, text):
        other = await session.begin([1, 2])
        await session.sample([5, 6], other)
        await session.sample("x")
        try:
            await session.sample([1.5])
        except ValueError as error:
            return Outcome(text=f"{other}: {error}")

    async def messages(self, prompt, session, text):
        told = [{"role": "tool", "content": "42", "calls": [{"id": 1}]}]
        await session.begin(told)
        await session.sample(told)
        try:
            await session.sample([{"role": "tool", "content": {1, 2}}])
        except ValueError as error:
            return Outcome(text=str(error))

    async def limit(self, prompt, session, text):
        while True:
            try:
                await session.sample("go on")
            except EpisodeLimit as limit:
                if text == "limit caught":
                    return Outcome(text=str(limit), ended="cut")
                raise

    async def hangs(self, prompt, session, text):
        await session.sample("x")
        hanging(text)
        await asyncio.sleep(600)

    async def blocks(self, prompt, session, text):
        hanging(text)
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])

    async def ends_badly(self, prompt, session, text):
        hanging(text)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return Outcome(rewards=(1.0,) * 9)

    async def raises(self, prompt, session, text):
        raise KeyError("no such tool")

    async def huge(self, prompt, session, text):
        await session.sample("x" * (1 << 20))

    async def odd(self, prompt, session, text):
        return eval(text.partition(" ")[2])

    async def dies(self, prompt, session, text):
        await session.sample("x")
        if text == "dies always" or not os.path.exists("died"):
            open("died", "a").write("x")
            os._exit(3)
        return Outcome()

    async def forges(self, prompt, session, text):
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                import stat
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, text.partition(" ")[2].encode() + b"\n")
            except OSError:
                pass
        await asyncio.sleep(600)

def right(prompt, completion):
    return float(completion == "3")

@hookimpl
def rlax_register_reward():
    return {"right": Extension(NoOptions, lambda config, context: right)}

@hookimpl
def rlax_register_environment():
    return {"wild": Extension(NoOptions, lambda config, context: Wild())}
"""


CLOCKS: list[HeldClock] = []  # of jobs of the shared pool, as they begin


@pytest.fixture(autouse=True)
def _plugin(tmp_path, monkeypatch):
    write_plugin(tmp_path, monkeypatch, PLUGIN)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """For episodes that leave their process alive."""
    directory = tmp_path_factory.mktemp("shared")
    with shared_pool(config(), directory, PLUGIN, clocks=noted(CLOCKS)) as do:
        yield do


def config(**changes):
    return section("right", environment={"name": "wild"}, **changes)


async def play(pool, *firsts: str | Played):
    """Outcomes of episodes that are played side by side."""
    played = [one if isinstance(one, Played) else Played(one) for one in firsts]
    return await asyncio.gather(*(pool.play(prompt(level=3), one) for one in played))


async def standing(one: Played) -> HeldClock:
    """The clock of the only episode, once it stands because the policy is asked."""
    await eventually(lambda: one.waits and not CLOCKS[-1].runs)
    return CLOCKS[-1]


def test_turns_travel_and_many_episodes_run_beside_rewards_in_one_process(shared):
    async def work(pool):
        held = [Played("turns 2") for _ in range(40)]
        for one in held:
            one.go.clear()
        plays = asyncio.ensure_future(play(pool, *held))
        assert totals(await pool.score(prompt(), episodes("3", "4"))) == [1.0, 0.0]
        assert not plays.done()
        for one in held:
            one.go.set()
        for outcome, one in zip(await plays, held, strict=True):
            assert one.asked == [("0:turns 2", 0), ("1:turns 2", 0)] and one.beginnings == 1
            metrics = {"turns": 2.0, "level": 3.0, "left": 5.0}
            assert outcome == Outcome("2 1:turns 2", (0.0, 1.0, 2.0), "done", metrics)

    shared(work)


def test_an_environment_may_begin_and_reads_but_never_returns_log_probs(shared):
    async def work(pool):
        one = Played(None)
        (outcome,) = await play(pool, one)
        assert one.asked == [("a", 0)]
        assert one.options == [{"most_tokens": 3, "tools": [{"name": "f"}]}]
        assert (outcome.rewards, outcome.reward) == ((1.0,), 0.5)
        said = "[-0.5, -0.25] 6 begins there is no first answer: this environment begins its "
        assert outcome.text is not None and outcome.text.startswith(said)

    shared(work)


def test_tokens_and_further_trajectories_travel_too(shared):
    async def work(pool):
        one = Played("tokens")
        (outcome,) = await play(pool, one)
        assert one.contexts == [[1, 2]] and one.asked == [([5, 6], 1), ("x", 0)]
        assert outcome.text == "1: what is given must be text, messages, or a list of token ids"

    shared(work)


def test_messages_travel_as_they_are(shared):
    async def work(pool):
        one = Played("messages")
        (outcome,) = await play(pool, one)
        told = [{"role": "tool", "content": "42", "calls": [{"id": 1}]}]
        assert one.contexts == [told] and one.asked == [(told, 0)]
        assert outcome.text == (
            "JSON cannot hold these messages: Object of type set is not JSON serializable"
        )

    shared(work)


def test_a_limit_cuts_an_episode_unless_its_environment_catches_it(shared):
    async def work(pool):
        cut, caught = await play(pool, Played("limit", turns=3), Played("limit caught", turns=2))
        assert cut == Outcome("2 go on", (), "cut")
        assert caught == Outcome("8 turns are the most", (), "cut")

    shared(work)


@pytest.mark.parametrize("how, replaced", [("hangs", 0), ("blocks", 1)])
def test_one_that_hangs_is_ended_and_costs_only_itself(how, replaced):
    async def work(pool):
        beside = Played("turns 1")
        beside.go.clear()
        plays = asyncio.ensure_future(play(pool, beside))
        (bad,) = await play(pool, how)
        beside.go.set()
        (good,) = await plays
        assert isinstance(good, Outcome) and beside.beginnings == 1 + replaced
        assert reason(bad).startswith("rlax.environment (wild) (slowest answer so far: ")
        assert "(set rlax.deadlines.episode_s to wait longer)" in reason(bad)
        assert pool.replaced == replaced and bad.ending == "environment_late"

    with_pool(config(), work, clocks=late_at_once(Path("hanging")))


def test_time_in_which_the_policy_answers_is_not_the_environments(shared):
    async def work(pool):
        one = Played("turns 1")
        one.go.clear()
        plays = asyncio.ensure_future(play(pool, one))
        clock = await standing(one)
        used_s, now_s = clock.used_s, time.monotonic()
        await eventually(lambda: time.monotonic() > now_s + 0.05)
        assert clock.used_s == used_s
        one.go.set()
        assert isinstance((await plays)[0], Outcome)

    shared(work)


@pytest.mark.parametrize(
    "how, says",
    [
        ("raises", "KeyError: 'no such tool' (line"),
        ("huge", "bytes are too long for one turn: 1048576 are the most"),
        ("odd 7", "play returned a int, and must return an Outcome"),
        ("odd Outcome(metrics={'a': float('nan')})", "metric 'a' is nan"),
        ("odd Outcome(rewards='abc')", "the environment returned a text"),
        ("odd Outcome(rewards=(1.0, 2.0))", "play returned 2 rewards for 1 turns, and must return"),
        ("odd Outcome(ended='late')", "an outcome ended 'late': 'done' and 'cut' are allowed"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(shared, how, says):
    async def work(pool):
        bad, good = await play(pool, how, "turns 1")
        assert says in reason(bad) and "\n" not in reason(bad)
        assert isinstance(good, Outcome)
        assert bad.ending == "environment_failed"

    shared(work)


@pytest.mark.parametrize("how, deaths", [("dies", 1), ("dies always", 2)])
def test_an_episode_whose_process_ends_is_played_once_more_from_its_beginning(how, deaths):
    async def work(pool):
        beside = Played("turns 1")
        await play(pool, "turns 1")  # or the process would have been started for it
        one = Played(how)
        good, found = await play(pool, beside, one)
        assert isinstance(good, Outcome) and one.beginnings == 2
        if deaths == 1:
            assert isinstance(found, Outcome) and one.asked == [("x", 0)]
        else:
            said = "the reward process of rlax.environment (wild) ended with exit code 3"
            assert reason(found) == said and found.ending == "process_ended"
        assert pool.replaced == deaths

    with_pool(config(), work)


def test_a_process_that_has_ended_is_replaced_while_another_one_could_play_all():
    async def work(pool):
        held = [Played("turns 1") for _ in range(4)]
        for one in held:
            one.go.clear()
        plays = asyncio.ensure_future(play(pool, *held))
        await eventually(lambda: all(one.waits for one in held))
        assert [len(process.on_loop) for process in pool._processes] == [2, 2]
        pool._processes[0]._process.kill()
        await eventually(lambda: pool.replaced == 1 and pool._processes[0].up)
        assert len(pool._processes[1].on_loop) == 4
        for one in held:
            one.go.set()
        assert all(isinstance(one, Outcome) for one in await plays)
        assert [one.beginnings for one in held].count(2) == 2

    with_pool(config(reward_processes=2), work)


@pytest.mark.parametrize("line", ["nonsense", '{"job": 99, "outcome": {}}'])
def test_a_message_that_is_none_is_the_episodes_error(line):
    async def work(pool):
        (found,) = await play(pool, f"forges {line}")
        assert "rlax.environment (wild) sent something that is not an answer" in reason(found)
        assert found.ending == "process_ended"

    with_pool(config(), work)


def test_an_episodes_error_names_the_key_of_its_environment():
    async def work(pool):
        (wrong,) = await play(pool, Played("turns 2", errors={1: ValueError("not a token")}))
        assert reason(wrong).startswith("rlax.environments.a.environment: ValueError: not a token")

    with_pool(config(), work, key_of="rlax.environments.a.{}".format)


def test_what_a_policy_raises_is_the_runs_error_and_ends_the_episode_there(shared):
    async def work(pool):
        with pytest.raises(RlaxError, match="no worker"):
            await play(pool, Played("turns 2", errors={2: RlaxError("no worker")}))
        await eventually(lambda: not pool.under_way)
        (wrong,) = await play(pool, Played("turns 2", errors={1: ValueError("not a token")}))
        assert reason(wrong).startswith("rlax.environment: ValueError: not a token")

    shared(work)


def test_an_episode_that_is_cancelled_ends_in_its_process():
    """Whatever it still says is not read: its outcome has more rewards than turns."""

    async def work(pool):
        plays = asyncio.ensure_future(play(pool, "ends_badly"))
        await there(Path("hanging"))
        plays.cancel()
        await eventually(lambda: not pool.under_way)
        assert pool.replaced == 0

    with_pool(config(), work)


def test_an_episode_that_is_cancelled_asks_the_policy_for_nothing_more(shared):
    async def work(pool):
        one = Played("turns 1")
        one.go.clear()
        plays = asyncio.ensure_future(play(pool, one))
        await standing(one)
        plays.cancel()
        with pytest.raises(asyncio.CancelledError):
            await plays
        one.go.set()
        await eventually(lambda: not pool.under_way)
        assert one.asked == []

    shared(work)


def test_without_rewards_the_environment_alone_pays():
    async def work(pool):
        assert [one.total for one in await pool.score(prompt(), episodes("a", "b"))] == [0.0, 0.0]
        (outcome,) = await play(pool, "turns 1")
        assert outcome.rewards == (0.0, 1.0)

    with_pool(section(environment={"name": "wild"}), work)
