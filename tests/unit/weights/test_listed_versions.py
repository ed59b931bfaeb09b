"""What a run has listed: what a restart serves and deletes, and what it leaves alone."""

import asyncio
import functools
import json
import shutil
from pathlib import Path

import pytest
from parameter_servers import Steady
from waiting import eventually
from weight_runs import Disk, Run, write

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.kept_versions import (
    Listed,
    kept_version,
    listed_in_index,
    listed_versions,
    record_versions,
    versions_to_json,
)
from rlax_plugin.weights.parameter_server import ParameterServer


@pytest.fixture(params=["inside", "shared"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A run that has ended with versions 3 and 4."""
    shared = tmp_path / "shared" if request.param == "shared" else None
    run = Run(tmp_path / "run", shared)
    if shared:
        write(shared / "of-another-run")

    async def first(server: ParameterServer) -> None:
        for number in range(5):
            await run.publish(server, number, f"{number}-a", restart=number == 0)

    run.process(first)
    assert [name for name in run.there() if name != "of-another-run"] == ["3-a", "4-a"]
    return run


def own(run: Run) -> list[str]:
    names = run.there()
    if run.weights.name == "shared":
        names.remove("of-another-run")  # nobody else's is ever touched
    return names


def test_what_a_run_has_left_stays_until_its_next_process_has_published(run: Run) -> None:
    async def killed(server: ParameterServer) -> None:
        assert server.latest is not None and server.latest.version == 4
        await server.writing(str(run.weights / "4-b"))
        write(run.weights / "4-b")

    for _ in range(2):
        run.process(killed)
        shutil.rmtree(run.weights / "4-b")
        assert kept_version(run.files).paths == (str(run.weights / "4-a"),)
    assert own(run) == ["3-a", "4-a"]


def test_restarts_leak_nothing_whenever_they_are_killed(run: Run) -> None:
    async def writes(server: ParameterServer) -> None:
        await run.publish(server, 4, f"4-{turn}", restart=True)
        await server.writing(str(run.weights / f"5-{turn}"))
        write(run.weights / f"5-{turn}")  # and is killed: nobody was told of these bytes

    for turn in range(4):
        run.process(writes)
        left = own(run)
        assert len(left) == 3 and {"3-a", f"4-{turn}", f"5-{turn}"} == set(left)
        assert kept_version(run.files).paths == (str(run.weights / f"4-{turn}"),)


def test_a_lower_number_than_before_replaces_what_is_above(run: Run) -> None:
    async def lower(server: ParameterServer) -> None:
        await run.publish(server, 2, "2-b", restart=True)

    run.process(lower)
    assert own(run) == ["2-b"]
    assert kept_version(run.files).paths == (str(run.weights / "2-b"),)


def test_a_reader_that_came_before_the_restart_has_lease_s(run: Run) -> None:
    clock, lease_s = Steady(0.1), 1.0

    async def restarted(server: ParameterServer) -> None:
        await run.publish(server, 4, "4-b", restart=True)
        await run.publish(server, 5, "5-b")
        began_s = clock()
        while clock() < began_s + lease_s / 2:  # too early: nothing may go
            assert own(run) == ["3-a", "4-a", "4-b", "5-b"]
            await asyncio.sleep(0.05)
        await eventually(lambda: own(run) == ["4-b", "5-b"])

    run.process(restarted, lease_s, clock)


def test_a_deletion_that_fails_is_repeated_also_by_the_next_process(run: Run) -> None:
    async def failing(server: ParameterServer) -> None:
        run.store.away = True
        await run.publish(server, 4, "4-b", restart=True)

    async def next_one(server: ParameterServer) -> None:
        run.store.away = False
        await run.publish(server, 5, "5-c", restart=True)
        await run.publish(server, 6, "6-c")

    run.process(failing)
    assert own(run) == ["3-a", "4-a", "4-b"]
    run.process(next_one)
    assert own(run) == ["5-c", "6-c"]


def test_a_copy_of_a_run_deletes_nothing_of_the_original(run: Run, tmp_path: Path) -> None:
    copied = Run(Path(shutil.copytree(run.files.location(), tmp_path / "copy")))

    async def goes_on(server: ParameterServer) -> None:
        for number in (4, 5, 6):
            await copied.publish(server, number, f"{number}-copy", restart=number == 4)

    copied.process(goes_on)
    assert copied.there() == ["5-copy", "6-copy"]
    assert own(run) == ["3-a", "4-a"] and kept_version(run.files).version == 4


@pytest.mark.parametrize("text", [b"{", b"\xff", b'{"versions": 3}', b"[]", b'{"retired": 3}'])
def test_a_damaged_list_stops_no_run(tmp_path: Path, text: bytes, caplog) -> None:
    files = RunFiles(tmp_path)
    assert listed_versions(files, str(tmp_path / "weights")) == Listed()
    files.put("versions.json", text)
    assert listed_versions(files, str(tmp_path / "weights")) == Listed()
    assert "are left where they are" in caplog.text and "versions.json" in caplog.text


async def test_a_server_of_its_own_deletes_what_its_index_lists(tmp_path: Path) -> None:
    index, store = tmp_path / "index.json", Disk()
    old, gone = write(tmp_path / "old"), write(tmp_path / "gone")
    index.write_text(versions_to_json([make_version(1, old)], [gone]))

    server = ParameterServer(
        store,
        keep=1,
        lease_s=30,
        record=functools.partial(record_versions, RunFiles(tmp_path), name=index.name),
        listed=listed_in_index(index, str(tmp_path)),
        published_in=str(tmp_path),
    )
    assert server.latest == make_version(1, old)
    await server.publish(make_version(2, str(tmp_path / "new")))
    await server.close()
    assert not Path(old).exists() and not Path(gone).exists()
    assert [v["version"] for v in json.loads(index.read_text())["versions"]] == [2]


def test_a_list_that_names_other_places_deletes_nothing_there(tmp_path: Path, caplog) -> None:
    files = RunFiles(tmp_path / "run")
    weights = files.location("weights")
    mine, theirs = write(f"{weights}/00000003-a"), write(tmp_path / "theirs/00000003-a")
    void = [f"{weights}/1-a", theirs, f"{weights}/..", "/", weights, f"{weights}/2-a/.."]
    index = versions_to_json([make_version(3, mine), make_version(4, theirs)], void)
    record_versions(files, index)
    found = listed_versions(files, weights)
    assert [one.paths for one in found.versions] == [(mine,)]
    assert list(found.retired) == [f"{weights}/1-a"]
    assert caplog.text.count("left alone") == 6
