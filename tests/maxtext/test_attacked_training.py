"""Another user of the machine attacks a training with MaxText: he is let in nowhere."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import other_user_calls as known
import psutil
import pytest
from other_users import (
    attack,
    common_home,
    family,
    found_in,
    need_another_user,
    not_let_in,
    ports,
    secrets_of,
)
from runs import Run, digests, free_port

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

ROOT = Path(__file__).parents[2]
CONFIG = "tests/configs/maxtext.yml"
ENDLESS = 2000  # steps; it is stopped

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


def started(home: Path, *overrides: str) -> Run:
    run = Run(
        ROOT,
        f"base_output_directory={home}",
        f"steps={ENDLESS}",
        "rlax.network.serve_clients=true",
        *overrides,
        config=CONFIG,
    )
    run.dir = home / "maxtext"  # not below the checkout, whose tokenizer the config names
    run.until(lambda: len(run.steps()) >= 2, "two steps")
    return run


def stopped(run: Run) -> dict[int, set[str]]:
    """Its versions, once it has ended after the present step."""
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    assert audit(RunFiles(run.dir)).violation is None
    return digests(run.dir)


def test_another_user_is_let_in_nowhere_while_maxtext_trains(tmp_path: Path) -> None:
    need_another_user()
    prometheus = free_port()
    with common_home() as home:
        run = started(home, f"rlax.network.prometheus_port={prometheus}")
        processes = family([psutil.Process(run.process.pid)])
        secrets = secrets_of(run.dir, home)
        with_tls = sorted(ports(processes).keys() - {prometheus})
        assert len(with_tls) == 2  # of the controller with its parameter server, and of a worker
        first, *calls = attack("other_user_calls.py", ports=with_tls, with_tokens=[])
        assert {*with_tls} <= {*first["listening"]}
        ways = len(known.WITHOUT_A_TOKEN) + 2
        assert not_let_in(calls) == 2 * (2 * ways * len(known.EVERYTHING) + 3)
        paths = [str(path) for path in (home, *home.rglob("*"))]
        pids = [one.pid for one in processes]
        (seen,) = attack("other_user_files.py", paths=paths, pids=pids)
        own = [{**one.environ(), "arguments": " ".join(one.cmdline())} for one in processes]
        found = stopped(run)

        assert str(home / "anybody.txt") in seen["readable"]
        assert seen["writable"] == seen["grows"] == []
        readable = [Path(path) for path in seen["readable"] if Path(path).is_file()]
        assert not [path for path in readable if "token" in path.name or "secret" in path.name]
        for path in readable:
            assert found_in(path.read_bytes().decode("latin-1"), secrets) == [], path
        assert len(seen["processes"]) == len(own) >= 3  # the third one computes rewards
        for shown in seen["processes"].values():
            assert shown.keys() <= {"cmdline", "task", "status"}
            assert found_in(json.dumps(shown), secrets) == []
        assert found_in(json.dumps(own), secrets) == []

    last = max(found)
    undisturbed = started(tmp_path)
    undisturbed.until(lambda: len(undisturbed.steps()) > last, f"step {last + 1}")
    expected = stopped(undisturbed)
    assert len(found) > 2 and all(expected[version] == found[version] for version in found)
