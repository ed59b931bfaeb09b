"""Host 0 and another host over a real connection: orders, decisions, stops, and who may join."""

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

import numpy as np
import pytest
from led import COORDINATOR, HASH, TOKEN, led_by_host_0
from waiting import wait_until

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.errors import ConfigError, DeadlineError, TrainingError
from rlax_plugin.base.types import HostPlace
from rlax_plugin.config import Deadlines
from rlax_plugin.ports.orders import Order
from rlax_plugin.ports.training import Decision, Trainer
from rlax_plugin.run.hosts import following, leading
from rlax_plugin.run.hosts.following import START, EndedError, FollowedPort, HostZero
from rlax_plugin.run.start import leading as leading_start
from rlax_plugin.weights.memory_copies import LetGoError, OwnArrays

WEIGHTS = {"w": np.ones(2, np.float32)}


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(leading, "POLL_S", 0.2)


@pytest.fixture
def calls(monkeypatch):
    """Names of the calls that have reached a service which is made later."""
    reached = []

    def note(name, method):
        def noted(self, request, context):
            reached.append(name)
            return method(self, request, context)

        monkeypatch.setattr(leading.HostsService, name, noted)

    for name in ("Batch", "Decision"):
        note(name, getattr(leading.HostsService, name))
    return reached


@pytest.fixture
def led(calls):
    with led_by_host_0() as found:
        yield found


def test_orders_arrive_once_each_in_their_order_however_often_they_are_asked_for(led):
    zero = led.joined()
    with pytest.raises(TrainingError, match="order 1 of host 1 is not its next one, 0"):
        zero.order(1)  # nothing was sent yet
    for number in range(3):
        led.leader.tell(1, Order("update", {"n": str(number)}, {"a": np.full(4, number)}))
    assert [zero.order(0).settings["n"] for _ in range(3)] == ["0", "0", "0"]
    assert [zero.order(n).arrays["a"].tolist() for n in (0, 1, 2)] == [[n] * 4 for n in range(3)]
    assert led.leader.sent_bytes == 3 * 4 * 8
    # The one before is gone: host 0 keeps no more than the last that may have been lost.
    with pytest.raises(TrainingError, match="order 1 of host 1 is not its next one, 2"):
        zero.order(1)
    with pytest.raises(TrainingError, match="order 9 of host 1 is not its next one"):
        zero.order(9)


def test_a_host_waits_for_an_order_longer_than_a_call_lasts(led, calls):
    zero = led.joined()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.order, 0)
        wait_until(lambda: calls.count("Batch") >= 3, "a third call")
        assert not waiting.done()
        led.leader.tell(1, Order("update"))
        assert waiting.result(60).kind == "update"


def test_each_host_has_orders_of_its_own():
    with led_by_host_0(hosts=3) as led:
        one, two = led.joined(1, 3), led.joined(2, 3)
        led.leader.tell(2, Order("only two"))
        led.leader.tell_all(Order("both"))
        assert [one.order(0).kind, two.order(0).kind, two.order(1).kind] == [
            "both",
            "only two",
            "both",
        ]
        assert led.notes == ["host 1 of 3 has joined", "host 2 of 3 has joined"]


def test_a_decision_is_passed_on_once_it_is_made(led, calls):
    zero = led.joined()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(zero.decide, 4)
        wait_until(lambda: calls.count("Decision") >= 3, "a third call")
        assert not waiting.done()
        led.leader.decided(4, Decision(save=True, stop=False))
        assert waiting.result(60) == Decision(save=True, stop=False)
    led.leader.decided(5, Decision(save=True, stop=True))
    assert zero.decide(5) == Decision(save=True, stop=True)
    with pytest.raises(TrainingError, match="step 5 is decided already, not 4"):
        zero.decide(4)


def test_a_stop_and_a_failure_reach_host_0(led):
    zero, told = led.joined(), []
    led.leader.on_stop = lambda host, failure: told.append((host, failure))
    zero.stop().result(60)
    zero.stop("its disk is full\x1b[31m\n").result(60)
    assert told[0] == (1, "")
    host, failure = told[1]
    assert host == 1 and failure.startswith("its disk is full") and "\x1b" not in failure


@pytest.mark.parametrize("reason", ["", "no worker is left"])
def test_a_host_that_waits_hears_of_the_end_with_its_reason(led, reason):
    port = FollowedPort(led.joined(), None)
    led.leader.tell_all(Order(START, arrays={"canary": np.arange(3, dtype=np.int32)}))
    assert port.canary_tokens.tolist() == [0, 1, 2]
    led.leader.end(reason)
    with pytest.raises(EndedError, match=f"host 0 has ended training(: {reason})?$"):
        port.next_order()
    led.thread.run(led.leader.heard_the_end(600), 60)  # at once


def test_another_host_generates_between_the_orders_of_two_steps_only(led):
    """The first version is read from its files; a later one is the host's own arrays."""
    devices = Devices()
    port = FollowedPort(led.joined(), None, devices)
    order = functools.partial(led.leader.tell_all, Order("update"))
    try:
        port.publish(0, WEIGHTS)
        assert not devices.training and devices.rested.done()
        order()
        port.next_order()
        assert devices.training
        order()
        port.next_order()  # of the same step
        assert devices.training
        port.publish(1, WEIGHTS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(port.next_order)
            with devices.generating():  # host 0's batch waits for the end of this call
                order()
                time.sleep(0.3)
                assert not waiting.done()
            waiting.result(60)
        assert devices.training
        announced = OwnArrays.give({}, 1).token, OwnArrays.give({}, 2).token  # by host 0
        assert port._zero.start == led.leader.start
        port.publish(1, WEIGHTS)
        with pytest.raises(LetGoError):
            OwnArrays.take(announced[1])
        assert OwnArrays.take(announced[0])["w"] is WEIGHTS["w"]
    finally:
        OwnArrays.forget()


@pytest.mark.parametrize("compiles, key", [(False, "group_s"), (True, "startup_s")])
def test_a_call_of_another_host_s_engine_that_hangs_is_named(led, compiles, key):
    devices, zero = Devices(), led.joined()
    zero.deadlines = zero.deadlines.model_copy(update={"group_s": 0.1, "startup_s": 0.2})
    devices.compiles = lambda: compiles
    port = FollowedPort(zero, None, devices)
    port.publish(0, WEIGHTS)
    led.leader.tell_all(Order("update"))
    with devices.generating(), pytest.raises(DeadlineError, match=f"rlax.deadlines.{key}"):
        port.next_order()


def test_host_0_does_not_wait_for_a_host_that_hears_nothing(led):
    led.joined()
    led.leader.end("it failed")
    led.thread.run(led.leader.heard_the_end(0.3), 60)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ({"index": 2, "hosts": 3}, "there is no host 2: the hosts are 1 to 1"),
        ({"hosts": 4}, "host 0 was started as one of 2 hosts, not of 4"),
        ({"coordinator": "127.0.0.1:9"}, "with coordinator 127.0.0.1:4713, not 127.0.0.1:9"),
    ],
)
def test_a_host_of_another_start_is_rejected(led, host, reason):
    with pytest.raises(ConfigError, match=reason):
        led.host(**host).join(HASH, ())


def test_another_config_or_a_second_process_of_one_host_is_rejected(led):
    with pytest.raises(ConfigError, match="start all hosts with the same config and arguments"):
        led.host().join("another", ())
    led.joined()
    with pytest.raises(ConfigError, match="another process has joined as host 1"):
        led.host().join(HASH, ())


def test_no_call_is_answered_before_a_host_has_joined(led):
    zero = led.host()
    led.leader.tell(1, Order("update"))
    led.leader.decided(1, Decision(save=False, stop=False))
    calls = (
        lambda: zero.order(0),
        lambda: zero.decide(1),
        lambda: zero.stop("I was never here").result(60),
    )
    for call in calls:
        with pytest.raises(TrainingError, match="host 1 has not joined this start"):
            call()


def test_a_host_gives_up_a_host_0_that_cannot_be_reached(led):
    place = HostPlace(1, 2, COORDINATOR)
    lost = HostZero(place, "127.0.0.1:1", TOKEN, Deadlines(host_s=1), led.thread, 1 << 20)
    try:
        with pytest.raises(TrainingError, match=r"host 0 at 127\.0\.0\.1:1: UNAVAILABLE"):
            lost.order(0)
    finally:
        lost.close()


def test_an_answer_that_is_late_once_is_asked_for_again(monkeypatch):
    answer, asked = leading.HostsService.Decision, []

    async def late_once(self, request, context):
        asked.append(request.step)
        if len(asked) == 1:
            await asyncio.Event().wait()  # until the caller's deadline
        return await answer(self, request, context)

    monkeypatch.setattr(leading.HostsService, "Decision", late_once)
    monkeypatch.setattr(following, "POLL_S", 0.2)
    with led_by_host_0() as led:
        led.joined()
        led.leader.decided(4, Decision(save=True, stop=False))
        impatient = led.host(deadlines=Deadlines(host_s=60, rpc_s=0.3))
        assert impatient.decide(4) == Decision(save=True, stop=False) and len(asked) > 1


def test_a_host_that_waits_for_a_decision_hears_of_the_end(led, calls):
    port = FollowedPort(led.joined(), None)
    led.leader.tell_all(Order(START, arrays={"canary": np.arange(3, dtype=np.int32)}))
    assert len(port.canary_tokens) == 3
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(port.decide, 1)
        wait_until(lambda: calls.count("Decision") >= 3, "a third call")
        assert not waiting.done()
        led.leader.end("interrupted")
        with pytest.raises(EndedError, match="host 0 has ended training: interrupted"):
            waiting.result(60)
    led.thread.run(led.leader.heard_the_end(600), 60)  # at once


def test_a_decision_that_was_made_before_the_end_is_still_passed_on(led):
    zero = led.joined()
    led.leader.decided(3, Decision(save=True, stop=True))
    led.leader.end()
    assert zero.decide(3) == Decision(save=True, stop=True)


def test_host_0_does_not_wait_for_a_host_that_has_failed(led):
    zero, told = led.joined(), []
    zero.stop("its disk is full").result(60)  # before host 0 listens
    host_0 = MagicMock(spec=Trainer)
    leads = leading_start.led(led.leader, host_0, lambda *s: told.append(s), led.thread, 600.0)
    with pytest.raises(TrainingError, match="host 1 has failed"), leads:
        led.thread.run(asyncio.sleep(0), 60)
        assert told == [(1, "its disk is full")]
        raise TrainingError("host 1 has failed")
    assert led.leader.over and not host_0.leave.called
