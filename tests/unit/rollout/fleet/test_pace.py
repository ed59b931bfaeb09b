"""Measured speeds take the place of assumed ones, and deadlines are held against them in time."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_slots import generated, play, request, until, version

from rlax_plugin.config import RlaxSection
from rlax_plugin.rollout.fleet.deadlines import Pace
from rlax_plugin.weights.verification import take_version

# 200 tokens at the assumed 20/s take 10 s; prompts of 0.1 s per thousand tokens hardly count.
VALUES = {
    "prompt_source": {"name": "x"},
    "rewards": [{"name": "x"}],
    "rollouts": {"max_new_tokens": 200, "groups_per_step": 8, "group_size": 8, "slots": 64},
}


def worker(name: str = "a", slots: int = 64, **figures: float) -> Any:
    return SimpleNamespace(
        identity=(name, "p"), slots=slots, figures={"silent_tokens": 200.0} | figures
    )


def make(**deadlines: Any) -> tuple[Pace, dict[str, Any], list[str]]:
    section = RlaxSection.model_validate(VALUES | {"deadlines": deadlines})
    workers: dict[str, Any] = {}
    said: list[str] = []
    return Pace(section, workers, None, said.append), workers, said


def hear(pace: Pace, workers: dict[str, Any], one: Any) -> None:
    workers[one.identity[0]] = one
    pace.worker_heard(one)


def test_what_is_measured_takes_the_place_of_what_is_assumed_worker_by_worker():
    pace, workers, _ = make()
    group_s = pace.needed_s("group_s")
    assert group_s == pytest.approx(10, rel=0.01)
    assert pace.needed_s("weights_s") is None  # how large they are is not known
    # What is in the first report may have been compiling: 100 s for 10 steps say nothing.
    hear(pace, workers, worker(steps_total=10, decode_s_total=100))
    assert pace.needed_s("group_s") == group_s
    hear(pace, workers, worker(steps_total=60, decode_s_total=101))
    assert pace.needed_s("group_s") == pytest.approx(4, rel=0.01)  # 50 tokens a second
    # The slowest worker counts, as long as it is there.
    for steps, seconds in ((5, 5), (15, 7)):
        hear(pace, workers, worker("b", steps_total=steps, decode_s_total=seconds))
    assert pace.needed_s("group_s") == pytest.approx(40, rel=0.01)
    del workers["b"]
    assert pace.needed_s("group_s") == pytest.approx(4, rel=0.01)


def test_a_heartbeat_costs_as_little_beside_many_workers_as_beside_few():
    class Counted(dict[str, Any]):
        looks = 0

        def values(self) -> Any:
            self.looks += 1
            return super().values()

    looks = {}
    for count in (4, 64):
        workers = Counted((name, worker(name)) for name in map(str, range(count)))
        pace = Pace(RlaxSection.model_validate(VALUES), workers, None, lambda _: None)
        for one in 3 * list(workers.copy().values()):
            pace.worker_heard(one)
        looks[count] = workers.looks
    assert looks[4] == looks[64] > 0  # 12 heartbeats, and 192


def test_each_worker_counts_with_its_own_slots():
    """64 samples of 10 s: all at once in 64 slots, two halves in 32; and 10 s for a reward."""
    pace, workers, _ = make()
    turns = {"none yet": ((), 1), "half": ((32,), 2), "two": ((32, 32), 1), "uneven": ((16, 8), 3)}
    for slots, expected in turns.values():
        workers.clear()
        workers.update({str(i): worker(str(i), n) for i, n in enumerate(slots)})
        assert pace.needed_s("batch_s") == pytest.approx(10 * expected + 10, rel=0.01)


def test_weights_take_as_long_as_the_slower_of_writing_and_reading():
    pace, workers, _ = make()
    pace.weighs(4_000)
    assert pace.needed_s("weights_s") == 4_000 / 2e8
    pace.wrote(4_000, 2.0)
    assert pace.needed_s("weights_s") == 2.0
    hear(pace, workers, worker(read_bytes=4_000, read_s=5))
    assert pace.needed_s("weights_s") == 5.0
    pace.weighs(8_000)
    assert pace.needed_s("weights_s") == 10.0
    hear(pace, workers, worker("b", stream_bytes=4_000, stream_s=8))
    assert pace.needed_s("weights_s") == 16.0
    # Changes are read as fast as ever they can be, and yet at few bytes a second.
    changes = {"read_bytes": 40, "read_s": 1, "stream_bytes": 40, "stream_s": 1}
    hear(pace, workers, worker("c", **changes))
    pace.wrote(40, 1.0)  # adapters alone
    assert pace.needed_s("weights_s") == 16.0


def test_each_deadline_is_warned_of_once_as_assumed_and_once_as_measured():
    pace, workers, said = make(group_s=9, weights_s=3, startup_s=1)
    pace.look()
    assert said == []  # nobody has said how often the engine shows progress
    for _ in range(2):
        hear(pace, workers, worker())
    assert len(said) == 1 and said[0].startswith(
        "warning: rlax.deadlines.group_s = 9 s is too short: 200 tokens of a sequence take 10 s, "
        "at the speeds of rlax.deadlines.assume. Set it to 1"
    )
    pace.weighs(4_000)
    pace.wrote(4_000, 5.0)
    assert len(said) == 2 and "rlax.deadlines.weights_s = 3 s" in said[1]
    assert "takes 5 s, at measured speeds. Set it to 6" in said[1]
    for steps in (1, 2, 3, 4):  # a token every 2 s
        hear(pace, workers, worker(steps_total=steps, decode_s_total=2 * steps))
    assert [text.split()[1] for text in said[2:]] == [
        "rlax.deadlines.group_s",
        "rlax.deadlines.batch_s",
    ]
    assert "take 400 s, at measured speeds. Set it to 490" in said[2]


def test_a_deadline_that_holds_at_the_measured_speed_is_not_warned_of():
    pace, workers, said = make(group_s=6, assume={"tokens_per_s": 50})
    for steps in (50, 100):
        hear(pace, workers, worker(steps_total=steps, decode_s_total=steps / 50))
    assert said == []


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0, 1e-300, 1e300])
def test_figures_that_are_no_speed_change_nothing(nonsense):
    pace, workers, said = make()
    before = pace.needed_s("batch_s")
    pace.weighs(100)
    for steps in (1.0, nonsense):
        hear(pace, workers, worker(steps_total=steps, decode_s_total=nonsense, read_s=nonsense))
        hear(pace, workers, worker("b", steps_total=nonsense, decode_s_total=steps, read_bytes=1))
    assert said == [] and pace.needed_s("batch_s") == pytest.approx(before, abs=1e-5)


def test_the_jetstream_engine_tells_how_long_decoding_takes():
    async def scenario(engine: Any, slots: Any) -> None:
        figures = await asyncio.to_thread(engine.health)
        assert figures["decode_s_total"] == figures["steps_total"] == 0
        await take_version(engine, version(1))
        slots.gate.clear()
        running = asyncio.ensure_future(generated(engine, request(0, [1], new=5)))
        await until(slots.decoding)
        await asyncio.sleep(0.1)
        slots.gate.set()
        await running
        figures = engine.health()
        assert figures["steps_total"] == 4  # the first token is the prefill's
        assert figures["decode_s_total"] >= 0.1

    play(scenario)
