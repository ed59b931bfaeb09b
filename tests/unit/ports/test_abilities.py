"""Optional abilities: what is found in a part, what is missing, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlax_plugin.ports.abilities import Abilities, abilities_of, members
from rlax_plugin.ports.engine_abilities import (
    ENGINE_ABILITIES,
    GreedyDecoder,
    RequestCanceller,
    ServiceProvider,
)
from rlax_plugin.ports.environment import is_deterministic
from rlax_plugin.ports.kinds import ALL, BY_NAME
from rlax_plugin.ports.source_abilities import SOURCE_ABILITIES, AnsweredPrompts, tokenizer_of

CANCELLER, PROVIDER = (RequestCanceller,), (ServiceProvider,)


class Able:
    """Has each ability of an engine, one of them as an attribute of the object."""

    services = ("a.Service",)

    def __init__(self) -> None:
        self.close = lambda: None

    async def score(self, tokens: Any, loaded: Any = None) -> Any: ...

    async def decode_greedy(self, tokens: Any, count: int, loaded: Any) -> Any: ...

    def progress(self) -> Any: ...

    def unfinished(self) -> Any: ...

    def give_up(self, *arguments: Any) -> Any: ...

    reads_memory = True

    async def prepare(self) -> None: ...

    def preparing(self) -> str: ...

    @staticmethod
    def add_services(server: Any, engine: Any) -> Any: ...

    def client_example(self, address: str, token_file: Any, more: str = "") -> str: ...


def test_what_an_engine_has_and_does_not_have_is_one_line() -> None:
    every = "score, decode_greedy, reads_memory, progress, unfinished, give_up, prepare, "
    every += "preparing, close, services and add_services, client_example"
    assert str(abilities_of(Able(), ENGINE_ABILITIES)) == f"found: {every}"
    assert not abilities_of(Able(), ENGINE_ABILITIES).problems
    assert abilities_of(object(), ENGINE_ABILITIES) == Abilities((), tuple(every.split(", ")), ())
    some = type("Some", (), {"progress": Able.progress, "close": Able.progress, "give_up": None})
    found = abilities_of(some(), ENGINE_ABILITIES)
    assert str(found).startswith("found: progress, close; not implemented: score, decode_greedy, r")


@pytest.mark.parametrize(
    ("methods", "known", "problem"),
    [
        (
            {"give_up": lambda self, unwanted: {}},
            CANCELLER,
            "give_up(unwanted) is called as give_up(unwanted, oldest)",
        ),
        (
            {"give_up": lambda self, unwanted, oldest, more: {}},
            CANCELLER,
            "give_up(unwanted, oldest, more) is called as give_up(unwanted, oldest)",
        ),
        (
            {"give_up": Able.decode_greedy},
            CANCELLER,
            "give_up is a coroutine function, and is called without await",
        ),
        ({"add_services": Able.add_services}, PROVIDER, "add_services without services"),
        (
            {"answer_tokens": lambda self, prompt: np.zeros(1)},
            (AnsweredPrompts,),
            "answer_tokens without pad_id",
        ),
    ],
)
def test_what_cannot_be_called_is_found(methods: Any, known: Any, problem: str) -> None:
    found = abilities_of(type("Part", (), methods)(), known)
    assert problem in found.problems


def test_a_method_that_is_only_inherited_is_found() -> None:
    class Inherits(GreedyDecoder):
        pass

    (problem,) = abilities_of(Inherits(), (GreedyDecoder,)).problems
    assert problem == "decode_greedy is inherited from GreedyDecoder, which does nothing"


def test_properties_are_not_called_to_find_them() -> None:
    class Source:
        @property
        def stop_strings(self) -> tuple[str, ...]:
            raise AssertionError("it was read")

    found = abilities_of(Source(), SOURCE_ABILITIES)
    assert found.found == ("stop_strings",) and not found.problems


def test_abilities_with_a_member_in_common_are_told_apart() -> None:
    class Trainer:
        def checkpoints(self) -> Any: ...

        def start_from(self, descent: Any) -> Any: ...

    found = abilities_of(Trainer(), BY_NAME["trainer"].abilities)
    assert found.found == ("start_from",) and not found.problems
    assert "publish_checkpoint" in found.missing


def test_every_ability_says_what_it_is_and_when_its_methods_are_called() -> None:
    for ability in (one for kind in ALL for one in kind.abilities):
        assert (ability.__doc__ or "").strip(), ability
        assert members(ability), ability
        for name in members(ability):
            member = vars(ability)[name]
            told = name == "__call__" or isinstance(member, property) or member.__doc__
            assert told, f"{ability.__name__}.{name}"


def test_values_of_attributes_count() -> None:
    class Environment:
        deterministic = False

    assert not is_deterministic(Environment())  # pyright: ignore[reportArgumentType]
    Environment.deterministic = True
    assert is_deterministic(Environment())  # pyright: ignore[reportArgumentType]
    assert tokenizer_of(object()) is None
    assert tokenizer_of(type("Source", (), {"tokenizer": None})()) is None
