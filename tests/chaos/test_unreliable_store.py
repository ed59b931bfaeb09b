"""The store ``unreliable``: slow, faulty or silent as its file says, otherwise the other one."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sections import section_with

from chaos import unreliable_store
from chaos.unreliable_store import UnreliableStore, switch_on
from rlax_plugin.base.errors import ConfigError, WeightsError
from rlax_plugin.base.files.faults import LOG
from rlax_plugin.build import build_weight_store, registry_for
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing.store import NpzStore

ARRAYS = {"table": np.arange(6, dtype=np.float32)}


def context(**options: object) -> BuildContext:
    store = {"name": "unreliable", "switch": "/nowhere", **options}
    plugins = ["rlax_plugin.testing", "chaos.unreliable_store"]
    section = section_with(plugins=plugins, weights={"store": store})
    return BuildContext.outside_run(section)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(unreliable_store.time, "sleep", seconds.append)
    return seconds


def test_without_its_file_it_is_the_other_store(tmp_path: Path, slept: list[float]) -> None:
    store = build_weight_store(context(switch=str(tmp_path / "switch")))
    for index in range(100):
        store.save(str(tmp_path / f"{index}"), ARRAYS)
        assert store.load(str(tmp_path / f"{index}"), ARRAYS)["table"].tolist() == [*range(6)]
    assert NpzStore().load(str(tmp_path / "99"), ARRAYS).keys() == ARRAYS.keys()
    store.delete(str(tmp_path / "99"))
    assert slept == [] and not (tmp_path / "99").exists()


def test_a_slow_store_takes_200_ms_more(
    tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "events"))
    store = UnreliableStore(NpzStore(), str(tmp_path / "switch"))
    switch_on(tmp_path / "switch", "slow")
    store.save(str(tmp_path / "0"), ARRAYS)
    store.load(str(tmp_path / "0"), ARRAYS)
    store.delete(str(tmp_path / "0"))
    assert slept == [0.2, 0.2, 0.2]
    (tmp_path / "switch").unlink()
    store.save(str(tmp_path / "0"), ARRAYS)
    assert len(slept) == 3
    assert (tmp_path / "events").read_text() == "store-slowed\n" * 3


def test_one_call_in_twenty_fails_before_or_after_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_calls_hang_until_the_file_is_gone(word: str, hanging: str, tmp_path: Path) -> None:
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
    time.sleep(0.2)
    assert thread.is_alive()
    (tmp_path / "switch").unlink()
    thread.join(60)
    assert not thread.is_alive() and (tmp_path / "1").exists()


def test_hosts_write_together_if_they_can_into_the_other_store() -> None:
    for name in ("npz", "orbax"):
        outer = context(store={"name": name})
        assert build_weight_store(outer).shared_writing is (name == "orbax")


def test_wrong_options_of_the_other_store_are_refused() -> None:
    for options, key in (
        ({"name": "orbax", "chunks": 1}, r"rlax\.weights\.store\.store\.chunks"),
        ({"name": "absent"}, r"rlax\.weights\.store\.store\.name = 'absent'"),
    ):
        wrong = context(store=options)
        with pytest.raises(ConfigError, match=key):
            registry_for(wrong.section).check_part(
                "weight_store", wrong.section.weights.store, "rlax.weights.store", wrong
            )
