"""The machines of long tests: what they share, what they do not, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Machine, existing, leftovers, need_machines, network
from waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PORT = 4711
ANSWERS = f"""
import socket
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("listens", flush=True)
    while True:
        connection, (host, _) = server.accept()
        connection.sendall(f"hello {{host}}".encode())
        while data := connection.recv(100):
            connection.sendall(data)
        print("ended", flush=True)
"""
ASKS = f"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], {PORT}), timeout=60) as connection:
        print(connection.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""
STAYS = f"""
import socket, sys
connection = socket.create_connection((sys.argv[1], {PORT}), timeout=60)
print(connection.recv(100).decode(), flush=True)
for line in sys.stdin:
    connection.settimeout(float(line))
    try:
        connection.sendall(b"x")
        print(connection.recv(100).decode() or "closed", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machine]]:
    need_machines()
    directory = tmp_path_factory.mktemp("network")
    with network(3, directory, private=(directory / "disk",)) as machines:
        yield machines
        with machines[0].process(directory / "last.log", "sleep", "1000"):
            names = [machine.name for machine in machines]
            assert set(names) <= set(existing())
    assert not set(names) & set(existing())


@pytest.fixture
def server(machines: list[Machine], tmp_path: Path) -> Iterator[Path]:
    """The log of a server on the first machine."""
    log = tmp_path / "server.log"
    with machines[0].process(log, sys.executable, "-u", "-c", ANSWERS):
        wait_until(lambda: "listens" in log.read_text(), "the server does not listen")
        yield log


def test_machines_reach_each_other_and_nobody_else_reaches_them(
    machines: list[Machine], server: Path
) -> None:
    first, second, third = machines
    assert len({machine.address for machine in machines}) == 3
    for machine in (second, third):
        said = machine.run(sys.executable, "-c", ASKS, first.address)
        assert said == f"hello {machine.address}\n"
    # The server listens on all addresses of its machine, and loopback is another one elsewhere.
    assert first.run(sys.executable, "-c", ASKS, "127.0.0.1") == "hello 127.0.0.1\n"
    assert second.run(sys.executable, "-c", ASKS, "127.0.0.1") == "ConnectionRefusedError\n"
    links = second.run("ip", "-o", "link").splitlines()
    assert [line.split(": ")[1].partition("@")[0] for line in links] == ["lo", "eth0"]
    outside = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, timeout=60)
    assert first.address not in outside.stdout


def test_each_has_files_of_its_own_and_sees_the_others_elsewhere(
    machines: list[Machine], tmp_path: Path
) -> None:
    first, second, _ = machines
    shared, own = tmp_path / "shared", first.home.parent / "disk/own"
    write = f"echo 1 > {shared}; echo 2 > {own}; echo 3 > $HOME/mine; pwd"
    assert first.run("sh", "-c", write) == f"{first.home}\n"
    assert second.run("sh", "-c", f"cat {shared}; ls -A {own.parent} $HOME; echo $HOME") == (
        f"1\n{own.parent}:\n\n{second.home}:\n{second.home}\n"
    )
    assert not own.exists() and list(first.home.iterdir()) == []
    assert first.seen(own).read_text() == "2\n"
    assert first.seen(first.home / "mine").read_text() == "3\n"
    # What one command leaves is there for the next one.
    assert first.run("sh", "-c", f"cat {own}") == "2\n"


def test_each_sees_its_own_processes(machines: list[Machine], tmp_path: Path) -> None:
    first, second, _ = machines
    with first.process(tmp_path / "sleep.log", "sleep", "1234") as process:
        count = "grep -alz '^1234$' /proc/[0-9]*/cmdline | wc -l"
        wait_until(lambda: first.run("sh", "-c", count) == "1\n")
        assert second.run("sh", "-c", count) == "0\n"
        assert len(first.processes("1234")) == 1 and second.processes("1234") == []
    assert first.run("sh", "-c", count) == "0\n" and process.poll() is not None


def test_an_unplugged_machine_is_silent_and_its_connections_outlive_that(
    machines: list[Machine], server: Path
) -> None:
    first, second, _ = machines
    stays = subprocess.Popen(
        second.command(sys.executable, "-u", "-c", STAYS, first.address),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert stays.stdin is not None and stays.stdout is not None

    def asked(timeout_s: float) -> str:
        stays.stdin.write(f"{timeout_s}\n")
        return stays.stdout.readline().strip()

    try:
        assert stays.stdout.readline() == f"hello {second.address}\n"
        assert asked(60) == "x"
        second.unplug()
        assert asked(0.5) == "TimeoutError"
        second.plug_in()
        assert set(asked(60)) == {"x"}  # also the one that was lost, which TCP sends again
        assert "ended" not in server.read_text()
    finally:
        stays.kill()
        stays.communicate(timeout=60)


def test_the_power_of_a_machine_is_switched_off() -> None:
    need_machines()
    with network(2) as (first, second):
        assert second.home.parent.name.startswith(f"rlax-{os.getpid()}-")
        sleeper = subprocess.Popen(second.command("sleep", "1000"))
        comms = "cat /proc/[0-9]*/cmdline || true"
        wait_until(lambda: "sleep\0001000" in second.run("sh", "-c", comms))
        second.power_off()
        assert sleeper.wait(60) != 0
        assert first.run("true") == ""
    assert not first.home.parent.exists()


def test_what_a_killed_test_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    need_machines()
    code = (
        "import subprocess, sys, time\n"
        "from namespaces import network\n"
        "with network(2) as (one, other):\n"
        "    subprocess.Popen(one.command('sleep', '1000'))\n"
        "    print(one.name, one.home.parent, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    helpers = str(Path(__file__).parents[1] / "helpers")
    killed = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": helpers},
    )  # fmt: skip
    assert killed.stdout is not None
    name, home = killed.stdout.readline().split()
    pids = ["ip", "netns", "pids", name]
    try:
        wait_until(lambda: len(subprocess.check_output(pids).split()) >= 3)
        assert name in existing() and name not in leftovers()  # its process lives
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
    # Its processes end with it, even before anybody looks for them.
    wait_until(lambda: subprocess.check_output(pids).split() == [])
    assert name in leftovers()
    with network(1):
        assert name not in existing() and leftovers() == []
    assert not Path(home).exists()
