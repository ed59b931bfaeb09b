"""What is remembered of the processes that were workers, and of how many."""

from types import SimpleNamespace
from typing import Any

from rlax_plugin.rollout.fleet.identities import Identities, Identity


def registered(name: str, process: str) -> Any:
    """Returns a registration, of which only the identity counts here."""
    return SimpleNamespace(identity=(name, process))


def filled(count: int, known: Identities, *members: Identity) -> None:
    for number in range(count):
        known.add(registered(f"w{number}", "p"), {(f"w{number}", "p"), *members})


def test_those_that_registered_longest_ago_are_forgotten_first() -> None:
    known = Identities()
    filled(10_000, known)
    known.quarantine(("w0", "p"), "wrong weights")
    known.answered_nonsense(("w1", "p"))
    known.add(registered("w1", "p"), ())  # w1 comes again: then it is not the next to go
    filled(1, known)
    assert ("w0", "p") in known  # it registered again
    known.add(registered("new", "p"), {("w2", "p")})
    assert ("w2", "p") in known  # a member
    assert ("w3", "p") not in known and "w3" not in known.names
    assert known.rejection(("w0", "p")) == "quarantined: wrong weights"
    assert known.answered_nonsense(("w1", "p")) == 2
    assert len(known.names) == 10_000


def test_a_name_is_forgotten_with_its_last_process() -> None:
    known = Identities()
    known.add(registered("a", "old"), ())
    known.quarantine(("a", "old"), "wrong weights")
    known.add(registered("a", "new"), ())
    filled(9_999, known)
    assert ("a", "old") not in known and known.quarantined == {"a": "wrong weights"}
    filled(10_000, known)
    assert "a" not in known.names and known.quarantined == {}
    assert known.rejection(("a", "old")) is None


def test_of_one_process_a_hundred_registrations_are_kept() -> None:
    known = Identities()
    those = [registered("a", "p") for _ in range(150)]
    for one in those:
        known.add(one, {("a", "p")})
    kept = known.registrations(("a", "p"))
    assert len(kept) == 100 and kept[0] is those[50] and kept[-1] is those[-1]
