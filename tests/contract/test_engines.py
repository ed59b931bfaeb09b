"""Engines and stores that need more than ``check_plugin`` can make up, by the same contracts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scripted_slots
import toy_versions
from rlax_orbax.store import OrbaxStore

from rlax_plugin.base.errors import ContractError
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.testing import check_engine, check_store


class Slots(scripted_slots.ScriptedSlots):
    """Scripted slots that count what they generate."""

    def decode(self, *arguments):
        ended = super().decode(*arguments)
        self.tokens_total += sum(len(generated.tokens) for generated in ended)
        return ended


@pytest.mark.parametrize("mode", ["finish", "continue", "discard"])
def test_the_jetstream_engine_keeps_the_contract(mode: str) -> None:
    def make_engine():
        return scripted_slots.make_engine(Slots(), rollouts={"on_new_weights": mode})

    versions = [scripted_slots.version(3), scripted_slots.version(4)]
    rules = check_engine(make_engine, versions)
    assert len(rules) == 10
    assert rules[-1] == (
        "found: reads_memory, services, score, decode_greedy, progress, unfinished, give_up, "
        "prepare, preparing, close, add_services, client_example"
    )


def test_an_engine_without_abilities_keeps_the_contract_and_says_so(tmp_path: Path) -> None:
    class Plain(RolloutEngine):
        def __init__(self) -> None:
            self._engine = toy_versions.scripted()

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

    class Liar(Plain):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, scores=True)

    versions = [toy_versions.publish(tmp_path, number) for number in (0, 1)]
    rules = check_engine(Plain, versions)
    assert rules[-1].startswith("not implemented: reads_memory, services, score, decode_greedy, ")
    with pytest.raises(ContractError, match="it declares that it scores"):
        check_engine(Liar, versions)


def test_the_orbax_store_keeps_the_contract() -> None:
    assert len(check_store(OrbaxStore(deadline_s=60))) == 7
