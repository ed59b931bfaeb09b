"""Another user takes over the ports of processes that were killed, and plays them: in vain.

Who calls there sends nothing, because the certificate is another one; when the right process is
back, the run goes on.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from other_user_calls import bearer, outcome, pinned
from other_users import common_home, found_in, impostor, need_another_user, secrets_of
from runs import DEADLINE_S, HELPERS, Run, digests, free_port, held, lines, process
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.rpc.security.certificate import new_identity
from rlax_plugin.rpc.security.run_secrets import run_secrets
from rlax_plugin.rpc.security.secret import new_token
from rlax_plugin.tools.commands.audit import audit

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(500)]

STEPS, FIRST, SECOND = 12, 5, 9
PERSONAS = ("silent", "plain", "own certificate", "right one behind")
_TLS = b"\x16\x03"  # begins what a client says first: a handshake


def settings(first: Path, second: Path) -> tuple[str, ...]:
    """Arguments of a run that waits twice for a file."""
    return (
        f"steps={STEPS}",
        *held({FIRST: first, SECOND: second}, "checkpoint_every: 3"),
        "rlax.deterministic=true",
        "rlax.evaluation.problems=0",
        # Whoever is away is asked for long, and nobody is lost by his silence alone.
        "rlax.deadlines.startup_s=280",
        "rlax.deadlines.heartbeats_lost=400",
    )


@dataclass
class Taken:
    """The notes of an impostor.

    Attributes:
      connections: persona -> how often it was connected to.
      read: bytes of all connections, as they came in.
      calls: with all of their metadata, and messages.
    """

    connections: Counter[str] = field(default_factory=Counter)
    read: list[bytes] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, log: Path) -> Taken:
        found = cls()
        for line in lines(log):
            if "connected" in line:
                found.connections[line["connected"]] += 1
            elif "bytes" in line:
                found.read.append(bytes.fromhex(line["bytes"]))
            elif "method" in line or "message" in line:
                found.calls.append(line)
        return found

    def learned_nothing(self, secrets: dict[str, str]) -> None:
        assert self.calls == []
        assert self.read and any(one.startswith(_TLS) for one in self.read)
        said = b"".join(self.read)
        assert b"rlax.v1" not in said and b"uthorization" not in said and b"PRI *" not in said
        assert found_in(said.decode("latin-1"), secrets) == []


def bound(log: Path) -> bool:
    return any("bound" in line for line in lines(log))


def tried(log: Path) -> bool:
    return any("taken" in line for line in lines(log))


@pytest.fixture(scope="module", autouse=True)
def path() -> Any:
    need_another_user()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HELPERS, prepend=":")
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, set[str]]:
    directory = tmp_path_factory.mktemp("undisturbed")
    go = directory / "go"
    go.touch()
    run = Run(directory, *settings(go, go))
    status, out = run.end()
    assert status == 0, out
    return digests(run.dir)


def test_an_impostor_who_is_believed_learns_everything(tmp_path: Path) -> None:
    """So that it means something if he learns nothing."""
    own, token, port, log = new_identity(), new_token(), free_port(), tmp_path / "impostor.log"
    order = {"key": own.key, "certificate": own.certificate, "right": own.certificate}
    with impostor(log, port=port, personas=["own certificate"], **order):
        wait_until(lambda: bound(log), "the port taken", limit_s=DEADLINE_S)
        with pinned(port, own.certificate) as channel:
            assert outcome(channel, "/a.B/C", b"prompt", bearer(token)) == ("OK", b"")
    taken = Taken.of(log)
    (call, message) = taken.calls
    assert call["method"] == "/a.B/C" and token in str(call["metadata"])
    assert bytes.fromhex(message["message"]) == b"prompt"
    assert found_in(b"".join(taken.read).decode("latin-1"), {"": token}) == []


def test_who_takes_a_port_over_learns_nothing_and_changes_nothing(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    port = free_port()
    overrides = (
        *settings(first, second),
        "rlax.launcher={name: static}",
        f"rlax.network.port={port}",
    )
    with ExitStack() as stack:
        home = stack.enter_context(common_home())

        def worker(name: str) -> subprocess.Popen[bytes]:
            join = ("--controller", f"127.0.0.1:{port}", "--name", name)
            patience = "rlax.deadlines.startup_s=280"
            return stack.enter_context(process(home, name, "serve", *join, patience))

        run = Run(home, *overrides)
        one, two = worker("one"), worker("two")
        logs = {name: home / f"{name}.log" for name in ("one", "two", "three")}
        for name in ("one", "two"):
            run.until(lambda n=name: "serving version" in logs[n].read_text(), f"worker {name}")
        run.until(lambda: len(run.steps()) == FIRST - 1, f"step {FIRST - 1}")
        secrets = secrets_of(run.dir, home)
        own = new_identity()
        order = {
            "key": own.key,
            "certificate": own.certificate,
            "right": run_secrets(run.dir).identity.certificate,
        }

        # A worker's port. The trainer's connection is broken, and it does not know it is lost.
        found = re.search(r"serves on 127.0.0.1:(\d+)", logs["one"].read_text())
        assert found
        taken_worker, taken_controller = tmp_path / "worker.log", tmp_path / "controller.log"
        with impostor(taken_worker, port=int(found[1]), **order):
            run.until(lambda: tried(taken_worker), "an attempt at a port in use")
            assert not bound(taken_worker)
            one.kill()
            run.until(lambda: bound(taken_worker), "the worker's port to be taken")
            first.touch()  # the groups of this step go to both workers
            run.until(lambda: len(run.steps()) == SECOND - 1, f"step {SECOND - 1}")
        Taken.of(taken_worker).learned_nothing(secrets)

        # The controller's port, on which the run's other worker looks for the next trainer.
        with impostor(taken_controller, port=port, **order):
            run.until(lambda: tried(taken_controller), "an attempt at a port in use")
            assert not bound(taken_controller)
            run.process.send_signal(signal.SIGKILL)
            run.process.communicate(timeout=DEADLINE_S)
            wait_until(lambda: bound(taken_controller), "the controller's port taken")
            three = worker("three")
            wait_until(
                lambda: "no answer" in logs["three"].read_text(),
                "a worker that asks",
                limit_s=DEADLINE_S,
            )

            def all_met() -> bool:
                met = Taken.of(taken_controller).connections
                return all(met[persona] >= 3 for persona in PERSONAS)

            wait_until(all_met, "a connection to everyone", limit_s=DEADLINE_S)
            assert two.poll() is None and three.poll() is None
        Taken.of(taken_controller).learned_nothing(secrets)
        assert "another trainer process" not in logs["two"].read_text()

        run = Run(home, *overrides)
        known = {"two": "another trainer process", "three": "serving version"}
        for name, said in known.items():  # the run would be over before they look again
            run.until(lambda n=name, s=said: s in logs[n].read_text(), f"worker {name} again")
        second.touch()
        status, out = run.end()
        assert status == 0, out
        assert two.wait(DEADLINE_S) == three.wait(DEADLINE_S) == 0
        assert digests(run.dir) == undisturbed and len(undisturbed) == STEPS + 1
        assert audit(RunFiles(run.dir)).violation is None
        assert secrets_of(run.dir, home)["worker"] == secrets["worker"]
