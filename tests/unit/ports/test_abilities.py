"""Optional members: what is found in a part, what is missing, and what does not fit."""

from typing import Any

import pytest
from part_stubs import EngineStub, SourceStub

from rlax_plugin.ports.abilities import Abilities, abilities_of
from rlax_plugin.ports.kinds import ALL
from rlax_plugin.ports.protocols import PromptSource, RolloutEngine


def test_what_an_engine_has_and_does_not_have_is_one_line() -> None:
    every = "reads_memory, services, score, decode_greedy, progress, unfinished, give_up, prepare, "
    every += "preparing, close, add_services, client_example"
    bare = abilities_of(EngineStub(), RolloutEngine)
    assert bare == Abilities((), tuple(every.split(", ")), ())
    assert str(bare) == f"not implemented: {every}"
    engine = type("Some", (EngineStub,), {"progress": lambda self: {}})()
    engine.close = lambda: None  # also as an attribute of the object
    some = abilities_of(engine, RolloutEngine)
    assert str(some).startswith("found: progress, close; not implemented: reads_memory, ")


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (lambda self, unwanted: {}, "give_up(unwanted) is called as give_up(unwanted, oldest)"),
        (
            lambda self, unwanted, oldest, more: {},
            "give_up(unwanted, oldest, more) is called as give_up(unwanted, oldest)",
        ),
        (EngineStub.generate, "give_up is a coroutine function, and is called without await"),
        (lambda self, *requests: {}, None),
        (lambda self, unwanted, oldest, more=0: {}, None),
    ],
)
def test_what_cannot_be_called_is_found(method: Any, problem: str | None) -> None:
    found = abilities_of(type("Part", (EngineStub,), {"give_up": method})(), RolloutEngine)
    assert found.found == ("give_up",)
    assert found.problems == (() if problem is None else (problem,))


def test_properties_are_not_called_to_find_them() -> None:
    class Source(SourceStub):
        @property
        def stop_strings(self) -> tuple[str, ...]:  # pyright: ignore
            raise AssertionError("it was read")

    found = abilities_of(Source(), PromptSource)
    assert found.found == ("stop_strings",) and not found.problems


def test_every_optional_method_says_what_it_is_and_when_it_is_called() -> None:
    for base in (kind.base for kind in ALL if kind.base is not object):
        assert (base.__doc__ or "").strip(), base
        for name, member in vars(base).items():
            if callable(member) and not name.startswith(("_", "on_")):  # events: docs/plugin_hooks
                assert member.__doc__, f"{base.__name__}.{name}"
