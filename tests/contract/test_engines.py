"""Engines and stores that need more than ``check_plugin`` can make up, by the same contracts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rlax_orbax.store import OrbaxStore

from rlax_plugin.errors import ContractError
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.testing import FakeEngine, FakeWeightStore, check_engine, check_store, make_request
from rlax_plugin.testing import policy as toy
from rlax_plugin.testing.builders import publish_version

HELPERS = str(Path(__file__).parents[1] / "helpers")


@pytest.fixture
def scripted() -> Iterator:
    """The slots without a model that the unit tests drive the JetStream engine with."""
    sys.path.append(HELPERS)
    try:
        import scripted_slots

        yield scripted_slots
    finally:
        sys.path.remove(HELPERS)


def slots_of(scripted):
    """Scripted slots that count what they generate."""

    class Slots(scripted.ScriptedSlots):
        def decode(self, *arguments):
            ended = super().decode(*arguments)
            self.tokens_total += sum(len(generated.tokens) for generated in ended)
            return ended

    return Slots


@pytest.mark.parametrize("mode", ["finish", "continue", "discard"])
def test_the_jetstream_engine_keeps_the_contract(scripted, mode: str) -> None:
    def make_engine():
        return scripted.make_engine(slots_of(scripted)(), rollouts={"on_new_weights": mode})

    versions = [scripted.version(3), scripted.version(4)]
    rules = check_engine(make_engine, versions, decode=scripted.Source().decode)
    assert len(rules) == 13
    assert rules[-1] == (
        "found: reads_memory, services, score, decode_greedy, progress, unfinished, give_up, "
        "prepare, preparing, close, add_services, client_example"
    )


def test_an_engine_that_generates_by_slot_is_found(scripted) -> None:
    class BySlot(slots_of(scripted)):
        def _generated(self, slot):
            generated = super()._generated(slot)
            generated.tokens[:] += slot
            return generated

    with pytest.raises(ContractError, match="make the random key from the request's seed"):
        check_engine(
            lambda: scripted.make_engine(BySlot()), [scripted.version(3), scripted.version(4)]
        )


def test_an_engine_that_goes_on_behind_a_stop_string_is_found(scripted) -> None:
    def make_engine():
        engine = scripted.make_engine(slots_of(scripted)())
        engine.prompt_source().decode = lambda tokens: ""
        return engine

    with pytest.raises(ContractError, match=r"goes on for \d+ tokens behind a stop string"):
        check_engine(
            make_engine,
            [scripted.version(3), scripted.version(4)],
            decode=scripted.Source().decode,
        )


def test_fakes_keep_the_contracts_of_what_they_stand_in_for() -> None:
    store = FakeWeightStore()
    assert len(check_store(store)) == 9
    versions = [publish_version(store, f"v{n}", toy.initial_weights(n), version=n) for n in (0, 1)]
    rules = check_engine(lambda: FakeEngine(store), versions, make_request())
    assert len(rules) == 13
    missing = "reads_memory, services, prepare, preparing, close, add_services, client_example"
    assert rules[-1] == (
        f"found: score, decode_greedy, progress, unfinished, give_up; not implemented: {missing}"
    )


def test_an_engine_without_abilities_keeps_the_contract_and_says_so() -> None:
    class Plain(RolloutEngine):
        def __init__(self) -> None:
            self._engine = FakeEngine(store)

        async def generate(self, requests: Any, on_reply: Any) -> None:
            await self._engine.generate(requests, on_reply)

        def health(self) -> dict[str, float]:
            return self._engine.health()

        async def load(self, version: Any) -> Any:
            return await self._engine.load(version)

        async def use(self, loaded: Any) -> None:
            await self._engine.use(loaded)

        @property
        def version(self) -> int:
            return self._engine.version

        @property
        def capabilities(self) -> Capabilities:
            return replace(self._engine.capabilities, scores=False)

    store = FakeWeightStore()
    versions = [publish_version(store, f"v{n}", toy.initial_weights(n), version=n) for n in (0, 1)]
    rules = check_engine(Plain, versions, make_request())
    assert rules[-1].startswith("not implemented: reads_memory, services, score, decode_greedy, ")

    class Liar(Plain):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, scores=True)

    with pytest.raises(ContractError, match="without score, it declares"):
        check_engine(Liar, versions, make_request())


def test_the_orbax_store_keeps_the_contract() -> None:
    assert len(check_store(OrbaxStore(deadline_s=60))) == 10
