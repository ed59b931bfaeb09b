"""The test's side of another local user: starts his scripts, and knows what he must not learn."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from other_user_calls import CALL_S

USER = 65_534
_HERE = Path(__file__).parent
BECOMES = (
    sys.executable,
    str(_HERE.parent / "helpers/ordinary_user.py"),
    str(USER),
    sys.executable,
)
_ATTACK_S = 200.0
_BARE = {"PATH": "/usr/bin:/bin", "GRPC_VERBOSITY": "NONE", "PYTHONDONTWRITEBYTECODE": "1"}


@functools.cache
def _problem() -> str:
    """The reason why no process of another user can be had; empty if one can."""
    if os.geteuid() != 0:
        return "only root can start a process of another user"
    probe = [*BECOMES, "-c", "import grpc, os; print(os.getuid())"]
    done = subprocess.run(probe, capture_output=True, text=True, env=_BARE, timeout=_ATTACK_S)
    if done.stdout.strip() == str(USER):
        return ""
    return f"no process of another user: {done.stderr.strip().rpartition(chr(10))[2]}"


def need_another_user() -> None:
    """Skips the test where no process of another user can be had."""
    if why := _problem():
        pytest.skip(why)


@contextmanager
def common_home() -> Iterator[Path]:
    """A directory that every user can enter, as pytest's are not, with what root makes by default.

    Token files of servers are below its ``state``.
    """
    before, home = os.umask(0o022), Path(tempfile.mkdtemp(prefix="rlax-home-"))
    home.chmod(0o755)
    (home / "anybody.txt").write_text("to see that the other user can read what he may")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        try:
            yield home
        finally:
            os.umask(before)
            shutil.rmtree(home, ignore_errors=True)  # a failed test's run still writes


def attack(script: str, **order: Any) -> list[dict[str, Any]]:
    """The lines of a script of the other user's, which has ended."""
    command = [*BECOMES, str(_HERE / script)]
    done = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, env=_BARE,
        cwd="/", timeout=_ATTACK_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *lines = (json.loads(line) for line in done.stdout.splitlines())
    assert first["user"] == USER
    return [first, *lines]


@contextmanager
def impostor(log: Path, **order: Any) -> Iterator[subprocess.Popen[str]]:
    """The other user at a port as soon as it is free, until the end of the block."""
    with log.open("w") as out:
        command = [*BECOMES, str(_HERE / "other_user_server.py")]
        started = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, text=True, env=_BARE, cwd="/"
        )
    assert started.stdin is not None
    try:
        started.stdin.write(json.dumps(order) + "\n")
        started.stdin.flush()
        yield started
    finally:
        started.kill()
        started.wait(60)
        started.stdin.close()


def family(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes with all that they have started."""
    return [one for root in processes for one in (root, *root.children(recursive=True))]


def ports(processes: Iterable[psutil.Process]) -> dict[int, str]:
    """Port -> command line of the process that listens on it, for this machine alone."""
    found: dict[int, str] = {}
    for process in processes:
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1", connection
                found[connection.laddr.port] = " ".join(process.cmdline())
    return found


def secrets_of(run: Path, home: Path) -> dict[str, str]:
    """Everything about a run that nobody else may learn: name -> text."""
    known = json.loads((run / "secrets.json").read_text())
    found = {name: known[name] for name in ("trainer", "worker")}
    found |= {f"key {i}": line for i, line in enumerate(known["key"].splitlines()[1:-1])}
    for file in (run / "worker-token.json", *home.glob("state/rlax/tokens/*.json")):
        found[file.name] = json.loads(file.read_text())["token"]
    return found


def found_in(text: str, secrets: dict[str, str]) -> list[str]:
    """The names of the secrets in a text."""
    return [name for name, secret in secrets.items() if secret in text]


def not_let_in(calls: Iterable[dict[str, Any]]) -> int:
    """Sees that every call at a port with TLS was rejected for its token; returns how many."""
    count = 0
    for call in calls:
        if call["method"] == "certificate":
            pytest.fail(f"no TLS at this port: {call}")
        if call["method"] == "GET":
            assert not call["hung"] and "HTTP/1" not in call["read"], call
        else:
            # Over plain text nothing is understood; over TLS, no caller is known.
            expected = "UNAVAILABLE" if call["over"] == "plain" else "UNAUTHENTICATED"
            assert call["status"] == expected, call
            assert call["seconds"] < CALL_S, call
        count += 1
    return count
