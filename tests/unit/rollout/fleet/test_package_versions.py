"""A worker with other packages than the run is rejected with what to install."""

import asyncio
import importlib.metadata
from typing import Any

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.fleet.package_versions import PackageVersions, malformed, own_versions
from rlax_plugin.rollout.worker.joining import join
from rlax_plugin.rpc import rlax_pb2 as pb

RUN = {
    "rlax-plugin": "0.1.0",
    "jax": "0.7.2",
    "maxtext": "0.2.5",
    "google-jetstream": "0.2.2",
    "rlax-brief": "1.0.3",
}


def rejection(**changes: str | None) -> str | None:
    told = RUN | {name.replace("_", "-"): version for name, version in changes.items()}
    told = {name: version for name, version in told.items() if version is not None}
    return PackageVersions(RUN).rejection("w", told)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"jax": "0.7.1"},
        {"maxtext": "0.2.6"},
        {"rlax_plugin": "0.1.9"},
        {"google_jetstream": "9.0"},
        {"rlax_brief": None},  # a tracker's plug-in, say: only the trainer needs it
        {"numpy": "1.0"},
    ],
)
def test_versions_that_fit(changes: dict[str, str | None]) -> None:
    assert rejection(**changes) is None


@pytest.mark.parametrize(
    ("changes", "said", "install"),
    [
        ({"jax": "0.6.9"}, "jax 0.6.9 (this run has 0.7.2)", "jax==0.7.2"),
        ({"rlax_plugin": "1.1.0"}, "rlax-plugin 1.1.0", "rlax-plugin==0.1.0"),
        ({"rlax_plugin": None}, "rlax-plugin of an unknown version", "rlax-plugin==0.1.0"),
        ({"rlax_brief": "1.0.4"}, "rlax-brief 1.0.4", "rlax-brief==1.0.3"),
        ({"jax": "0.6", "maxtext": "0.3"}, "maxtext 0.3", "jax==0.7.2 maxtext==0.2.5"),
    ],
)
def test_a_version_that_does_not_fit_says_what_to_install(
    changes: dict[str, str | None], said: str, install: str
) -> None:
    why = rejection(**changes)
    assert why is not None and said in why and f"install {install}" in why
    assert "rlax.network.allow_other_versions: true" in why


def test_other_versions_may_be_accepted_with_one_note() -> None:
    notes: list[str] = []
    versions = PackageVersions(RUN, allow_others=True, note=notes.append)
    told = RUN | {"jax": "0.6.0"}
    assert versions.rejection("w", told) is None is versions.rejection("w", told)
    assert len(notes) == 1 and "jax 0.6.0 (this run has 0.7.2)" in notes[0]


@pytest.mark.parametrize(
    "told",
    [
        {f"p{i}": "1" for i in range(65)},
        {"jax": "1" * 65},
        {"jax": "0.7\n"},
        {"jax; rm -rf": "1"},
        {"jax": ""},
    ],
)
def test_hostile_versions_are_rejected_whatever_is_allowed(told: dict[str, str]) -> None:
    assert malformed(told) is not None
    notes: list[str] = []
    why = PackageVersions(RUN, allow_others=True, note=notes.append).rejection("w", told)
    assert why is not None and len(why) < 400 and "\n" not in why and notes == []


def test_notes_are_limited() -> None:
    notes: list[str] = []
    versions = PackageVersions(RUN, allow_others=True, note=notes.append)
    for number in range(300):
        versions.rejection(f"w{number}", RUN | {"jax": "0.1"})
    assert len(notes) == 100


def test_a_process_knows_its_own() -> None:
    found = own_versions(("rlax_arithmetic", "some.module"))
    assert found["jax"] == importlib.metadata.version("jax")
    assert {"rlax-plugin", "maxtext", "google-jetstream"} <= set(found)
    assert malformed(found) is None and PackageVersions(found).rejection("w", found) is None


def test_a_worker_ends_with_what_to_install() -> None:
    class Fleet:
        async def Register(self, request: pb.RegisterRequest, timeout: float) -> pb.RegisterReply:
            return pb.RegisterReply(reason="run: pip install jax==0.7.2", other_versions=True)

    fleet: Any = Fleet()
    with pytest.raises(ConfigError, match=r"^installed packages: run: pip install jax==0\.7\.2$"):
        asyncio.run(join(fleet, pb.RegisterRequest(), Deadlines(), "scripted"))


def test_a_host_of_the_trainer_is_told_of_no_exception():
    why = PackageVersions({"jax": "0.11.0"}).rejection("host 1", {"jax": "0.12.0"}, is_host=True)
    assert why is not None and why.endswith("pip install jax==0.11.0")
    assert why.startswith("host 1 has other packages than this run: jax 0.12.0 (this run has 0.11")
