"""The store ``unreliable``: slow, faulty or silent as its file says, otherwise the other one."""

import random
import threading

import numpy as np
import pytest
from waiting import wait_until

from chaos.unreliable_store import UnreliableStore, switch_on
from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.files.faults import LOG
from rlax_plugin.testing.store import NpzStore

ARRAYS = {"table": np.arange(6, dtype=np.float32)}


def test_one_call_in_twenty_fails_before_or_after_it_is_done(tmp_path, monkeypatch) -> None:
    store = UnreliableStore(NpzStore(), str(tmp_path / "switch"))
    switch_on(tmp_path / "switch", "faulty")

    def fails(*chances: float) -> None:
        drawn = iter(chances)
        monkeypatch.setattr(random, "random", lambda: next(drawn))

    path = str(tmp_path / "0")
    fails(0.049, 0.5)  # before
    with pytest.raises(OSError, match=r"\[Errno 5\] Input/output error: '.*/0'"):
        store.save(path, ARRAYS)
    assert not (tmp_path / "0").exists()
    fails(0.049, 0.49)  # afterwards: the answer is lost
    with pytest.raises(OSError, match="Errno 5"):
        store.save(path, ARRAYS)
    fails(0.05, 0.0)
    assert store.load(path, ARRAYS).keys() == ARRAYS.keys()
    fails(0.0, 0.0)
    with pytest.raises(OSError, match="Errno 5"):
        store.load(path, ARRAYS)
    fails(0.0, 0.9)  # a deletion has an error of its own
    with pytest.raises(WeightsError, match=r"cannot delete .*/0: Input/output error"):
        store.delete(path)
    assert (tmp_path / "0").exists()


@pytest.mark.parametrize(("word", "hanging"), [("writes-hang", "save"), ("reads-hang", "load")])
def test_calls_hang_until_the_file_is_gone(word: str, hanging: str, tmp_path, monkeypatch) -> None:
    events = tmp_path / "events"
    monkeypatch.setenv(LOG, str(events))
    store = UnreliableStore(NpzStore(), str(tmp_path / "switch"))
    store.save(str(tmp_path / "0"), ARRAYS)
    switch_on(tmp_path / "switch", word)
    calls = {
        "save": lambda: store.save(str(tmp_path / "1"), ARRAYS),
        "load": lambda: store.load(str(tmp_path / "0"), ARRAYS),
    }
    calls[next(name for name in calls if name != hanging)]()
    thread = threading.Thread(target=calls[hanging], daemon=True)
    thread.start()
    hung = lambda: events.exists() and events.read_text() == "store-hung\n"  # noqa: E731
    wait_until(hung, "a call that hangs")
    assert thread.is_alive()
    (tmp_path / "switch").unlink()
    thread.join(60)
    assert not thread.is_alive() and (tmp_path / "1").exists()
