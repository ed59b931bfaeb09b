"""When a worker loads weights, by what it has heard of versions."""

from rlax_plugin.base.types import MemoryCopy, VersionPart, WeightVersion
from rlax_plugin.rollout.worker.following import Following
from rlax_plugin.testing.builders import make_version


def version(number: int) -> WeightVersion:
    return make_version(number, f"/w/{number}")


def in_memory(number: int) -> WeightVersion:
    part = VersionPart("base", f"/w/{number}", memory=MemoryCopy(1, number, bytes(16)))
    return WeightVersion(number, number, (part,))


def following(held: int, reload_every: int = 2) -> Following:
    versions = Following(reload_every)
    versions.confirm(held)
    versions.seen(version(held))
    versions.held = held
    return versions


def test_versions_of_an_earlier_trainer_process_are_not_loaded() -> None:
    versions = Following(1)
    versions.seen(version(7))  # the parameter server still has it
    assert not versions.due
    assert not versions.confirm(-1) and not versions.due
    assert versions.confirm(0) and versions.due
    assert not versions.confirm(1)  # no news: the first has said that there are some


def test_every_second_version_is_loaded_or_one_that_a_request_needs() -> None:
    versions = following(3)
    versions.seen(version(4))
    assert not versions.due and versions.can_go_on
    assert versions.want(4) and versions.due and not versions.can_go_on
    assert not versions.want(4)
    versions.held = 4
    versions.seen(version(6))
    assert versions.due and versions.can_go_on


def test_a_request_for_a_version_that_nobody_has_loads_nothing() -> None:
    versions = following(3)
    versions.want(5)
    assert not versions.due


def test_a_pinned_version_is_loaded_and_then_kept_whatever_is_published() -> None:
    versions = following(3, reload_every=1)
    assert versions.keep(2) and not versions.keep(2) and versions.due
    versions.held = 2
    versions.seen(version(9))
    assert not versions.due and not versions.can_go_on
    assert versions.keep(None) and versions.due


def test_another_trainer_process_makes_it_forget() -> None:
    versions = following(3)
    versions.keep(3)
    versions.forget()
    versions.seen(version(8))
    assert (versions.held, versions.pin, versions.due) == (-1, None, False)


def test_a_version_in_memory_is_loaded_before_it_is_on_the_disk() -> None:
    versions = following(3, reload_every=1)
    versions.seen(in_memory(4))
    assert versions.due and versions.offered == in_memory(4)
    versions.held = 4
    versions.seen(version(4))
    assert not versions.due
    versions.seen(in_memory(5))
    versions.seen(version(5))
    assert versions.due and versions.offered == in_memory(5)  # it is still there
    versions.seen(version(6))
    assert versions.due and versions.offered is None


def test_without_the_copy_the_worker_waits_for_the_files() -> None:
    versions = following(3, reload_every=1)
    versions.seen(copied := in_memory(4))
    versions.decline(in_memory(4))  # another one
    assert versions.offered is copied
    versions.decline(copied)
    assert not versions.due and versions.offered is None
    versions.seen(version(4))
    assert versions.due and versions.offered is None


def test_a_pinned_version_is_taken_from_memory_only_if_it_is_there() -> None:
    versions = following(3, reload_every=1)
    versions.keep(4)
    versions.seen(in_memory(4))
    assert versions.due and versions.offered == in_memory(4)
    versions.seen(in_memory(5))
    assert versions.due and versions.offered is None
