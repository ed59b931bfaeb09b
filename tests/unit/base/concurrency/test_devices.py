"""Training has the devices alone, and goes first; the engine's threads share them."""

import threading

import pytest
from waiting import wait_until

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.errors import DeadlineError, WorkerError

LIMIT_S = 60


class Thread(threading.Thread):
    """One call of an engine, which ends when it is told to."""

    def __init__(self, devices: Devices):
        super().__init__(daemon=True)
        self._devices, self.began, self.end = devices, threading.Event(), threading.Event()
        self.start()

    def run(self):
        with self._devices.generating():
            self.began.set()
            assert self.end.wait(LIMIT_S)


def test_the_engine_waits_for_the_trainer_and_its_threads_do_not_wait_for_each_other():
    devices = Devices()
    one, other = Thread(devices), Thread(devices)
    assert devices.training and not devices.rested.done()
    assert not one.began.wait(0.05) and not other.began.is_set()
    devices.rest()
    assert devices.rested.done()
    for thread in (one, other):  # both at once: neither has ended
        assert thread.began.wait(LIMIT_S)
    for thread in (one, other):
        thread.end.set()
        thread.join(LIMIT_S)


def test_a_trainer_that_waits_goes_before_the_next_call_of_the_engine():
    devices = Devices()
    devices.rest()
    before = Thread(devices)
    assert before.began.wait(LIMIT_S)
    trains = threading.Thread(target=devices.train, args=(LIMIT_S, "k"), daemon=True)
    trains.start()
    wait_until(lambda: devices._trainer_waits)
    after = Thread(devices)
    assert not after.began.wait(0.05)  # although another call of the engine has the devices
    before.end.set()
    trains.join(LIMIT_S)
    assert devices.training and not after.began.is_set()
    devices.rest()
    assert after.began.wait(LIMIT_S)
    after.end.set()


def test_a_call_that_does_not_end_is_an_error_with_its_key_and_training_does_not_begin():
    devices = Devices()
    devices.rest()
    stuck = Thread(devices)
    assert stuck.began.wait(LIMIT_S)
    with pytest.raises(DeadlineError, match=r"a call of the rollout engine.*rlax\.deadlines\.g"):
        devices.train(0.01, "rlax.deadlines.group_s")
    assert not devices.training
    stuck.end.set()
    stuck.join(LIMIT_S)
    devices.train(LIMIT_S, "rlax.deadlines.group_s")
    assert devices.training


def test_an_engine_that_is_closed_gets_no_turn_while_the_trainer_has_the_devices():
    devices = Devices()
    devices.rest()
    devices.train(LIMIT_S, "k")
    refused: list[str] = []

    def wait_for_a_turn():
        with pytest.raises(WorkerError, match="is being closed"), devices.generating():
            refused.append("it had a turn")
        refused.append("refused")

    waiting = threading.Thread(target=wait_for_a_turn, daemon=True)
    waiting.start()
    devices.end()
    waiting.join(LIMIT_S)
    assert refused == ["refused"] and devices.training


def test_the_trainer_may_rest_after_the_wait_for_it_was_cancelled():
    devices = Devices()
    devices.rested.cancel()
    devices.rest()


def test_the_seconds_of_training_grow_only_while_the_trainer_has_the_devices():
    devices = Devices()
    before_s = devices.trained_s
    wait_until(lambda: devices.trained_s > before_s)
    devices.rest()
    assert devices.trained_s == devices.trained_s > before_s
    resting_s = devices.trained_s
    devices.train(LIMIT_S, "k")
    wait_until(lambda: devices.trained_s > resting_s)
