"""The workers that the launcher ``ray`` keeps, with a cluster that is a fake."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlax_ray.workers import Lost, Workers, shares


class FakeCall:
    """A call that a test answers."""

    def __init__(self, method: str, args: tuple[Any, ...]):
        self.method, self.args = method, args
        self.answer: Any = None

    def done(self) -> bool:
        return self.answer is not None

    def result(self) -> Any:
        if isinstance(self.answer, Lost):
            raise self.answer
        return self.answer


class FakeActor:
    def __init__(self, name: str):
        self.name, self.calls, self.killed = name, list[FakeCall](), False

    def call(self, method: str, *args: Any) -> FakeCall:
        self.calls.append(FakeCall(method, args))
        return self.calls[-1]

    def kill(self) -> None:
        self.killed = True

    def last(self, method: str) -> FakeCall:
        return next(one for one in reversed(self.calls) if one.method == method)

    def count(self, method: str) -> int:
        return sum(one.method == method for one in self.calls)


class FakeCluster:
    """Stands in for Ray: a test says on which nodes actors are, and how their calls end."""

    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.ending: dict[str, float] = {}

    def actor(self, name: str, pool: Mapping[str, Any]) -> FakeActor:
        self.actors.append(FakeActor(name))
        return self.actors[-1]

    def draining(self) -> Mapping[str, float]:
        return self.ending


def pool(name: str, least: int, most: int) -> dict[str, Any]:
    return {"name": name, "min": least, "most": most, "needs": "1 CPU", "arguments": [f"of={name}"]}


class Kept:
    """``Workers`` with a fake cluster and a clock that is set."""

    def __init__(self, *pools: dict[str, Any], wanted: int, max_restarts: int = 2, last: int = 0):
        self.cluster, self.now, self.ms = FakeCluster(), 0.0, 1000
        self.token, self.events = "first", list[tuple[str, dict[str, Any]]]()
        self.workers = Workers(
            cluster=self.cluster,
            pools=pools,
            token=lambda: self.token,
            report=lambda event, **fields: self.events.append((event, fields)),
            max_restarts=max_restarts,
            drain_s=30.0,
            last_incarnation=last,
            clock=lambda: self.now,
            now_ms=lambda: self.ms,
        )
        self.workers.resize(wanted)

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.workers.tick()

    def placed(self, index: int, node: str) -> FakeActor:
        """Puts an actor on a node, and has its worker started."""
        actor = self.cluster.actors[index]
        actor.last("place").answer = node
        self.tick()
        return actor

    def names(self) -> list[str]:
        return sorted(one.name for one in self.workers.all if one.stays)

    def said(self) -> list[str]:
        return [fields["text"] for event, fields in self.events if event == "log"]


def test_a_worker_starts_once_its_actor_has_a_node_with_a_number_of_its_own():
    kept = Kept(pool("a", 2, 2), wanted=2, last=5000)
    kept.tick()
    first, second = kept.cluster.actors
    assert (first.name, second.name) == ("a-0", "a-1") and not first.count("serve")
    kept.placed(0, "n0")
    kept.placed(1, "n1")
    starts = [actor.last("serve").args for actor in (first, second)]
    # Later than what an earlier driver has given, though this machine's clock is behind.
    assert starts == [
        (["of=a", "--name", "a-0", "--incarnation", "5001"], "first"),
        (["of=a", "--name", "a-1", "--incarnation", "5002"], "first"),
    ]
    kept.ms = 7000
    first.last("serve").answer = [1, "out of memory"]
    kept.tick(1)
    kept.tick(1)
    assert first.last("serve").args[0][-1] == "7000" and len(kept.cluster.actors) == 2
    assert kept.said() == ["worker a-0 ended with status 1: out of memory"]


def test_a_lost_actor_is_called_again_and_one_that_is_gone_is_replaced():
    kept = Kept(pool("a", 1, 1), wanted=1)
    kept.tick()
    actor = kept.placed(0, "n0")
    actor.last("serve").answer = Lost("its node is gone", gone=False)
    kept.tick()
    for _ in range(3):  # Ray starts it elsewhere; until then every call fails
        actor.last("place").answer = Lost("it is restarting", gone=False)
        kept.tick()
    assert actor.count("serve") == 1 and actor.count("place") == 5
    assert kept.said() == ["worker a-0 was lost with its process or node: its node is gone"]
    kept.placed(0, "n1")
    assert actor.count("serve") == 2
    actor.last("serve").answer = Lost("it has died", gone=True)
    kept.tick()
    kept.placed(1, "n2")
    assert [one.count("serve") for one in kept.cluster.actors] == [2, 1]
    assert [event for event, _ in kept.events].count("restarted") == 2


def test_an_actor_that_cannot_be_made_is_made_again_a_few_times():
    kept = Kept(pool("a", 1, 1), wanted=1, max_restarts=2)
    for _ in range(10):
        kept.tick()
        kept.cluster.actors[-1].last("place").answer = Lost("No module named 'rlax_ray'", gone=True)
    assert len(kept.cluster.actors) == 3
    line = "worker a-0 could not be started by Ray: No module named 'rlax_ray'"
    assert kept.said() == [line, line, line]
    assert kept.events[-1] == ("failed", {"text": line})


@pytest.mark.parametrize("status", [1, 2])
def test_a_worker_that_cannot_start_is_given_up_and_the_last_one_ends_the_run(status):
    kept = Kept(pool("a", 2, 2), wanted=2, max_restarts=2)
    kept.tick()
    for index in (0, 1):
        kept.placed(index, f"n{index}")
    kept.cluster.actors[1].last("serve").answer = [2, "rlax.plugins: no such module"]
    kept.tick()
    assert not [event for event, _ in kept.events if event == "failed"]
    for _ in range(3):
        kept.cluster.actors[0].last("serve").answer = [status, "no device"]
        kept.tick()
        if status == 1:
            kept.tick(2)
    assert kept.cluster.actors[0].count("serve") == (3 if status == 1 else 1)
    (failed, *_) = [fields for event, fields in kept.events if event == "failed"]
    assert failed["text"].startswith("worker a-1 ended with status 2: rlax.plugins")


def test_a_worker_that_has_worked_is_tried_again_for_as_long_as_the_run_lives():
    kept = Kept(pool("a", 1, 1), wanted=1, max_restarts=5)
    kept.tick()
    actor = kept.placed(0, "n0")
    kept.tick(61.0)  # it works
    pauses: list[float] = []
    while len(pauses) < 8 and kept.now < 9000:
        began_s, starts = kept.now, actor.count("serve")
        actor.last("serve").answer = [2, "the token file has mode 0644"]
        while actor.count("serve") == starts and kept.now < 9000:
            kept.tick(0.5)
        pauses.append(kept.now - began_s)
    assert pauses == pytest.approx([10.5, 20.5, 40.5, 80.5, 160.5, 320.5, 600.5, 600.5], abs=0.5)
    failing = [fields for event, fields in kept.events if event == "failing"]
    assert [bool(one["text"]) for one in failing] == [True, False] * 8
    assert "a-0 is started again at " in failing[0]["text"]
    assert failing[0]["text"].endswith(
        "it failed 1 times in a row, the last time it ended with status 2: the token file has "
        "mode 0644"
    )
    assert not [event for event, _ in kept.events if event == "failed"]
    kept.tick(61.0)
    actor.last("serve").answer = [1, "no device"]
    starts = actor.count("serve")
    kept.tick()
    kept.tick()
    assert actor.count("serve") == starts + 1  # it had worked again: it is started at once


def test_a_worker_leaves_a_node_that_ends_once_another_one_is_there():
    kept = Kept(pool("a", 1, 1), wanted=1)
    kept.tick()
    old = kept.placed(0, "n0")
    kept.cluster.ending = {"n0": 300.0}
    kept.tick()
    assert kept.names() == ["a-1"] and not old.count("stop")
    kept.placed(1, "n1")
    kept.tick()
    assert old.last("stop").args == (30.0,) and not old.killed
    old.last("serve").answer = [0, "drained"]
    kept.tick()
    assert old.killed and kept.names() == ["a-1"] and len(kept.cluster.actors) == 2


def test_a_worker_leaves_before_its_node_ends_even_if_there_is_no_other_node():
    kept = Kept(pool("a", 1, 1), wanted=1)
    kept.tick()
    old = kept.placed(0, "n0")
    kept.cluster.ending = {"n0": 20.0}
    kept.tick()
    assert old.last("stop").args == (15.0,)
    kept.tick(16)
    assert old.killed and kept.names() == ["a-1"]


def test_numbers_of_workers_follow_and_the_last_pool_is_emptied_first():
    kept = Kept(pool("a", 1, 2), pool("b", 1, 2), wanted=2)
    kept.tick()
    assert kept.names() == ["a-0", "b-0"]
    kept.workers.resize(4)
    kept.tick()
    assert kept.names() == ["a-0", "a-1", "b-0", "b-1"]
    for index in range(4):
        kept.placed(index, f"n{index}")
    kept.workers.resize(3)
    kept.tick()
    assert kept.names() == ["a-0", "a-1", "b-0"]
    leaving = kept.cluster.actors[3]
    assert (leaving.name, leaving.count("stop")) == ("b-1", 1)
    kept.workers.resize(4)  # the name is still taken
    kept.tick()
    assert kept.names() == ["a-0", "a-1", "b-0", "b-2"]


def test_a_new_token_reaches_every_worker_and_the_end_ends_all():
    kept = Kept(pool("a", 2, 2), wanted=2)
    kept.tick()
    kept.placed(0, "n0")
    kept.token = "second"
    kept.tick()
    assert [actor.last("renew").args for actor in kept.cluster.actors] == [("second",)] * 2
    kept.placed(1, "n1")
    assert kept.cluster.actors[1].last("serve").args[1] == "second"
    kept.workers.stop(10.0)
    kept.cluster.actors[0].last("serve").answer = [0, "it ended"]
    kept.tick()
    assert [actor.killed for actor in kept.cluster.actors] == [True, False]
    kept.tick(10)  # the other one does not end
    assert kept.cluster.actors[1].killed and not kept.workers.all


def test_it_is_said_once_that_no_node_has_what_a_pool_needs():
    kept = Kept(pool("a", 1, 1), wanted=1)
    for _ in range(100):
        kept.tick()
    assert kept.said() == ["worker a-0 waits for a node that has 1 CPU"]


@given(
    bounds=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6),
    more=st.integers(0, 40),
)
def test_shares_keep_to_the_limits_of_each_pool_and_add_up(bounds, more):
    pools = [pool(f"p{i}", least, least + extra) for i, (least, extra) in enumerate(bounds)]
    least, most = (sum(one[key] for one in pools) for key in ("min", "most"))
    wanted = min(least + more, most)
    found = shares(pools, wanted)
    assert sum(found) == wanted
    assert all(p["min"] <= n <= p["most"] for p, n in zip(pools, found, strict=True))
    full = [n == p["most"] for p, n in zip(pools, found, strict=True)]
    least_only = [n == p["min"] for p, n in zip(pools, found, strict=True)]
    # Pools are filled in their order: none has more than its least number before all others do.
    for index in range(len(pools) - 1):
        assert full[index] or all(least_only[index + 1 :])
