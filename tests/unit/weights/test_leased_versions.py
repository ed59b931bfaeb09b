"""Retention and leases, on a clock that the test moves."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import Canary, TensorSpec
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.kept_versions import versions_from_json, versions_to_json
from rlax_plugin.weights.leased_versions import MOST_LEASES, VersionTable
from rlax_plugin.weights.messages import version_from_proto, version_to_proto


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def version(number):
    return make_version(number, f"/w/{number}")


def table(keep=2, published=0, **kwargs):
    made = VersionTable(keep=keep, lease_s=10.0, clock=kwargs.pop("clock", Clock()), **kwargs)
    for number in range(published):
        made.publish(version(number))
    return made


def numbers(versions):
    return [v.version for v in versions.versions]


def test_the_newest_are_kept_and_each_older_path_is_returned_once():
    t = table(keep=2)
    assert t.latest is None
    assert [t.publish(version(n)) for n in (0, 1, 2, 9)] == [[], [], ["/w/0"], ["/w/1"]]
    assert numbers(t) == [2, 9] and t.latest == version(9)
    assert t.expire() == []


@pytest.mark.parametrize("number", [0, 2])
def test_the_same_or_an_older_version_is_rejected(number):
    t = table(published=3)
    with pytest.raises(WeightsError, match=f"version {number} cannot be published after version 2"):
        t.publish(make_version(number, f"/other/{number}"))
    assert numbers(t) == [1, 2]


@pytest.mark.parametrize("restart", [False, True])
def test_the_newest_may_be_published_again_which_changes_nothing(restart):
    """The publisher's answer was lost: to void the version would delete the bytes in use."""
    t = table(keep=2, published=3)
    first = make_version(1, "/again/1")
    assert t.publish(first, restart=True) == ["/w/1", "/w/2"]
    for _ in range(2):
        assert t.publish(first, restart=restart) == []
    assert numbers(t) == [1] and not t.void and t.latest is first
    t.publish(version(2))
    with pytest.raises(WeightsError, match="version 1 cannot be published after version 2"):
        t.publish(first, restart=restart)  # a call that comes much too late
    assert numbers(t) == [1, 2] and not t.void


def test_leases_are_limited_and_expired_ones_make_room():
    clock = Clock()
    t = table(published=1, clock=clock)
    for _ in range(MOST_LEASES):
        t.acquire(0, "a reader")
    with pytest.raises(WeightsError, match="10000 leases are held"):
        t.acquire(0, "one too many")
    clock.now_s += 11
    t.expire()
    assert t.acquire(0, "a reader").version == version(0)


def test_a_lease_keeps_a_version_and_the_last_release_lets_it_go():
    t = table(keep=1, published=1)
    one, two = t.acquire(0, "one"), t.acquire(None, "two")
    assert one.id != two.id and one.version == two.version == version(0)
    assert t.publish(version(1)) == []
    assert t.release(one.id) == []
    assert numbers(t) == [0, 1]
    assert t.release(two.id) == ["/w/0"]
    assert t.release(two.id) == []


def test_releasing_a_version_that_is_still_among_the_newest_deletes_nothing():
    t = table(keep=1, published=1)
    assert t.release(t.acquire(0, "one").id) == []


def test_what_is_gone_or_never_was_cannot_be_acquired():
    t = table(keep=1)
    with pytest.raises(WeightsError, match="one requested a version; available: none"):
        t.acquire(None, "one")
    t.publish(version(0))
    t.publish(version(1))
    with pytest.raises(WeightsError, match="one requested version 0; available: 1"):
        t.acquire(0, "one")
    assert t.next_expiry_s is None


def test_an_expired_lease_lets_go_and_cannot_be_renewed():
    clock = Clock()
    t = table(keep=1, published=1, clock=clock)
    lease = t.acquire(0, "dead")
    t.publish(version(1))
    clock.now_s += 9.9
    assert t.expire() == [] and t.next_expiry_s == pytest.approx(0.1)
    clock.now_s += 0.1
    with pytest.raises(WeightsError, match="expired"):
        t.renew(lease.id)
    assert t.expire() == ["/w/0"]
    assert t.next_expiry_s is None


def test_renewing_gives_the_full_life_again():
    clock = Clock()
    t = table(keep=1, published=1, clock=clock)
    lease = t.acquire(0, "alive")
    t.publish(version(1))
    for _ in range(5):
        clock.now_s += 9.0
        assert t.renew(lease.id).expires_s == clock.now_s + 10.0
        assert t.expire() == []


def test_a_table_continues_from_former_versions():
    clock = Clock()
    t = table(keep=1, versions=[version(4), version(3)], clock=clock)
    assert numbers(t) == [3, 4] and t.latest == version(4)
    with pytest.raises(WeightsError):
        t.publish(version(3))
    # Somebody may be reading either of them.
    clock.now_s += 10.0
    assert t.publish(version(5)) == [] and numbers(t) == [3, 4, 5]
    clock.now_s += 10.0
    assert t.publish(version(6)) == ["/w/3", "/w/4", "/w/5"]


def test_a_restart_voids_what_is_not_older():
    t = table(keep=3, published=4)  # 1, 2, 3
    new = make_version(2, "/w/2-new")
    assert t.publish(new, restart=True) == ["/w/2", "/w/3"]
    assert numbers(t) == [1, 2] and t.latest is new
    with pytest.raises(WeightsError, match="version 2 cannot be published after version 2"):
        t.publish(version(2))
    assert t.publish(version(3)) == []
    assert t.publish(version(4), restart=True) == ["/w/1"]  # nothing was void; keep = 3
    assert numbers(t) == [2, 3, 4]


def test_a_void_version_stays_for_its_readers_and_for_nobody_else():
    clock = Clock()
    t = table(keep=2, published=4, clock=clock)  # 2, 3
    released, expired = t.acquire(3, "one"), t.acquire(2, "two")
    assert t.publish(make_version(1, "/w/1-new"), restart=True) == []
    assert numbers(t) == [1]
    with pytest.raises(WeightsError, match="requested version 3; available: 1"):
        t.acquire(3, "three")
    t.publish(make_version(2, "/w/2-new"))
    assert t.acquire(2, "four").version.paths == ("/w/2-new",)
    assert t.release(released.id) == ["/w/3"]
    clock.now_s += 5
    assert t.renew(expired.id).version.paths == ("/w/2",)
    clock.now_s += 10
    assert t.expire() == ["/w/2"]
    assert numbers(t) == [1, 2]


def test_something_must_be_kept():
    with pytest.raises(ValueError, match="keep = 0"):
        table(keep=0)


FULL = make_version(
    7,
    "gs://bucket/w/7",
    tensors={
        "decoder.kernel": TensorSpec((4, 64), "bfloat16", 0xFFFFFFFF),
        "scalar": TensorSpec((), "float32", 0),
    },
)


CANARY = Canary(
    tokens=np.array([5, 0, 7], np.int32),
    logprobs=np.array([-0.1, -33.3], np.float32),  # no exact decimals: every bit must survive
    tolerance=0.25,
)


def test_an_index_loses_nothing():
    sent = make_version(7, FULL.paths[0], FULL.tensors, CANARY)
    listed = versions_from_json(versions_to_json([sent, version(8)], ["/w/6"]), "x")
    (found, other), retired = listed.versions, listed.retired
    assert replace(found, canary=None) == FULL and other == version(8) and retired == ["/w/6"]
    assert found.canary is not None
    for name, dtype in (("tokens", np.int32), ("logprobs", np.float32)):
        array = getattr(found.canary, name)
        assert array.dtype == dtype and array.tobytes() == getattr(CANARY, name).tobytes()
    assert found.canary.tolerance == 0.25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": b"12345"}, "garbled"),
        ({"logprobs": b""}, "3 tokens and 0 log-probs"),
        ({"tolerance": float("nan")}, "tolerance nan"),  # no difference would exceed it
        ({"tolerance": -1.0}, "tolerance -1"),
    ],
)
def test_a_canary_that_fits_nothing_is_rejected(changes, message):
    garbled = version_to_proto(make_version(7, "/w/7", {}, CANARY))
    for name, value in changes.items():
        setattr(garbled.canary, name, value)
    with pytest.raises(WeightsError, match=f"version 7: .* canary .*{message}"):
        version_from_proto(garbled)


def index_of(**fields):
    """An index of one version, with other fields of its message."""
    sent = version_to_proto(make_version(7, "/w/7", {}))
    for name, value in fields.items():
        setattr(sent, name, value)
    message = base64.b64encode(sent.SerializeToString()).decode()
    return json.dumps({"versions": [{"version": 7, "message": message}], "retired": []})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"versions": [{"version": 1}], "retired": []}',
        '{"versions": [{"version": 1, "message": "/w=="}], "retired": []}',
        "[" * 100_000,
        index_of(version=-1),
        index_of(version=7).replace("retired", "version"),
    ],
)
def test_a_damaged_index_is_named(text):
    with pytest.raises(WeightsError, match=r"index\.json is not an index"):
        versions_from_json(text, "index.json")
