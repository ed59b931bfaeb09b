"""A workspace: commands in one sandbox of programs, whose files stay and whose processes do not."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rlax_plugin.api import COMMAND_LIMITS, CarryError, Ended, SandboxError, Workspace
from rlax_plugin.reward.sandbox import memory
from rlax_plugin.reward.sandbox.code_limits import MIB
from rlax_plugin.reward.sandbox.layers import Offer, offered

pytestmark = pytest.mark.skipif(bool(offered().missing), reason="layers are missing")

# Small ones: what goes wrong here must not hurt the machine.
LIMITS = replace(
    COMMAND_LIMITS, wall_s=30.0, memory_bytes=256 * MIB, processes=24, space_bytes=32 * MIB
)
REPOSITORY = Path(__file__).parents[4]


async def said(workspace: Workspace, command: str) -> str:
    ended = await workspace.run(["bash", "-c", command])
    assert ended.right, ended
    return ended.stdout.decode().strip()


async def test_files_stay_between_commands_and_processes_do_not() -> None:
    async with Workspace(LIMITS) as workspace:
        assert await said(workspace, "echo 1 > a; (setsid sleep 60 &); (sleep 60 &); pwd") == "/tmp"
        assert await said(workspace, "git init -q r && cd r && git add . && cat ../a") == "1"
        code = "import os, pytest, sys; print(sys.prefix != sys.base_prefix, os.getenv('A'))"
        ended = await workspace.run(["python", "-c", code], environment={"A": "b"})
        assert ended.stdout == b"True b\n"
        holder = psutil.Process()
        assert sum(one.name() == "sleep" for one in holder.children(recursive=True)) == 0
        assert (await workspace.run(["cat"], b"in")).stdout == b"in"
    assert not workspace.alive
    with pytest.raises(SandboxError, match="has ended"):
        await workspace.run(["true"])


async def test_a_command_that_cannot_run_ends_as_in_a_shell() -> None:
    async with Workspace(LIMITS) as workspace:
        assert [
            (await workspace.run(command)).code
            for command in (["no-such"], ["/tmp"], ["echo", "a\0b"], ["echo", "x" * 200_000])
        ] == [127, 126, 126, 126]
        assert (await workspace.run(["sleep", "60"], wall_s=0.2)).why == "time"
        running = asyncio.ensure_future(workspace.run(["sleep", "60"]))
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await said(workspace, "echo later") == "later"


async def test_what_fills_the_workspace_is_limited() -> None:
    async with Workspace(LIMITS) as workspace:
        ended = await workspace.run(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=99"])
        assert b"No space left" in ended.stderr
        ended = await workspace.run(["python", "-c", "x = bytearray(1 << 30)"])
        assert b"MemoryError" in ended.stderr
        ended = await workspace.run(["sh", "-c", "head -c 3000000 /dev/zero"])
        assert (ended.why, len(ended.stdout)) == ("output", MIB)
        bomb = "import os, time\nfor _ in range(6): os.fork()\ntime.sleep(5)"
        ended = await workspace.run(["python", "-c", bomb])
        assert b"BlockingIOError" in ended.stderr, ended
        with pytest.raises(CarryError, match="too large") as raised:
            await workspace.take(["big"])
        assert raised.value.ending == "crashed"  # which trains as wrong
        hidden = ["sh", "-c", "chmod 000 /tmp"]  # must not look as if the sandbox had failed
        assert (await workspace.run(hidden)).right and await said(workspace, "echo 2") == "2"


async def test_a_memory_bomb_ends_the_workspace_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a cgroup, where this process ends the whole of it."""
    monkeypatch.setattr(memory, "_new_cgroup", lambda: None)
    small = replace(LIMITS, memory_bytes=64 * MIB, space_bytes=512 * MIB)
    bomb = "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (40 << 20)\ntime.sleep(60)"
    workspace = Workspace(small, port=5)
    await workspace.start()
    assert workspace._server is not None and workspace._server.listener is not None
    number = workspace._server.listener.fileno()
    ended = await workspace.run(["python", "-c", bomb])
    assert (ended.ending, workspace.alive) == ("over_memory", False)
    await asyncio.gather(*workspace._closing)
    await workspace.close()
    # The next file of that number can be waited for.
    here, there = socket.socketpair()
    if here.fileno() != number:
        os.dup2(here.fileno(), number)
        here = socket.socket(fileno=number)
    arrived = asyncio.Event()
    asyncio.get_running_loop().add_reader(here, arrived.set)
    there.send(b"1")
    await asyncio.wait_for(arrived.wait(), 60)
    asyncio.get_running_loop().remove_reader(here)
    here.close()
    there.close()


async def test_memory_is_watched_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, exceeded = [], memory.Watch.exceeded

    def noted(watch: memory.Watch) -> bool:
        threads.append(threading.current_thread())
        return exceeded(watch)

    monkeypatch.setattr(memory, "_new_cgroup", lambda: None)
    monkeypatch.setattr(memory.Watch, "exceeded", noted)
    async with Workspace(LIMITS) as workspace:
        assert (await workspace.run(["sleep", "0.5"])).right
    assert threads and threading.main_thread() not in threads


def test_the_processes_of_this_machine_are_read_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, read = [], psutil.process_iter
    monkeypatch.setattr(psutil, "process_iter", lambda: reads.append(1) or read())
    monkeypatch.setattr(memory, "_TABLE_S", 600.0)
    monkeypatch.setattr(memory, "_read_s", float("-inf"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        watches = [memory.Watch(-memory.OWN_BYTES + limit) for limit in (0, 1 << 40)]
        for watch in watches:
            watch.add(process.pid)
        assert [watch.exceeded() for watch in watches] == [True, False]
        process.kill()
    assert reads == [1]


async def test_only_regular_files_are_carried() -> None:
    async with Workspace(LIMITS) as workspace:
        await workspace.put({"d/run": b"#!/bin/sh\necho ran > d/out\n", "top": b"1"})
        await said(workspace, "d/run; ln -s /etc/passwd d/link; mkfifo d/pipe; ln -s d e")
        taken = await workspace.take(["d", "e", "top", "missing"])
        assert taken == {"d/run": b"#!/bin/sh\necho ran > d/out\n", "d/out": b"ran\n", "top": b"1"}
        for path in ("/etc/passwd", "../x", "", "a/../../b"):
            with pytest.raises(ValueError, match="no plain path"):
                await workspace.take([path])
        await said(workspace, "rm -r top; mkdir -p top/x; ln -s /etc/passwd other")
        await workspace.put({"top": b"2", "other": b"3"})
        assert await said(workspace, "cat top other") == "23"
        assert await workspace.take(["d"], most_bytes=2000) != {}
        with pytest.raises(CarryError, match="too large"):
            await workspace.take(["d"], most_bytes=1000)


async def test_a_slow_machine_is_not_the_programs_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workspace(replace(LIMITS, wall_s=0.001)) as workspace:
        await workspace.put({"a": b"1" * (8 << 20)})  # takes longer than a command may
        await workspace.put({"a": b"2"})
        assert await workspace.take(["a"]) == {"a": b"2"}
        monkeypatch.setattr("rlax_plugin.reward.sandbox.workspace._CARRY_S", 0.001)
        with pytest.raises(SandboxError, match="cannot be put into the workspace within"):
            await workspace.put({"a": b"3" * (8 << 20)})


async def test_a_command_reaches_one_port_of_this_machine_and_nothing_else() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"said " + await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    port, closed = (one.sockets[0].getsockname()[1] for one in (server, other))
    ask = "exec 3<>/dev/tcp/127.0.0.1/{}; echo hello >&3; cat <&3"
    async with Workspace(LIMITS, port=port) as workspace:
        assert await said(workspace, ask.format(workspace.reached)) == "said hello"
        for one in {port, closed} - {workspace.reached}:
            assert not (await workspace.run(["bash", "-c", ask.format(one)])).right
        code = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        assert b"unreachable" in (await workspace.run(["python", "-c", code])).stderr
    async with Workspace(LIMITS) as workspace:
        assert not (await workspace.run(["bash", "-c", ask.format(port)])).right
    server.close()
    other.close()


async def test_a_connection_ends_with_that_of_the_server() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"1")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with Workspace(LIMITS, port=server.sockets[0].getsockname()[1]) as workspace:
        # As many as are passed on at a time, twice, while the program keeps its ends open.
        code = (
            "import socket\nall = []\nfor _ in range(128):\n"
            f"    all.append(socket.create_connection(('127.0.0.1', {workspace.reached})))\n"
            "    assert all[-1].recv(1) == b'1'\nprint(len(all))"
        )
        ended = await workspace.run(["python", "-c", code])
        assert ended.stdout == b"128\n", ended
    server.close()


async def test_this_machine_cannot_be_seen(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the run")
    hidden = [secret, __file__, Path.home() / ".bashrc", "/proc/1/environ", f"/proc/{os.getpid()}"]
    ways = [
        *(f"cat {path}" for path in hidden),
        f"kill -0 {os.getpid()}",
        "touch /usr/bin/x",
        "mount -t tmpfs x /mnt",
        "unshare -U true",
        "chroot / true",
        "su -c true",
        "python -c \"import os; os.memfd_create('uncounted')\"",
    ]
    async with Workspace(LIMITS) as workspace:
        ends = [await workspace.run(["sh", "-c", one]) for one in ways]
        assert [way for way, ended in zip(ways, ends, strict=True) if ended.right] == []
        assert set((await said(workspace, "env | cut -d= -f1")).split()) <= {
            *("PATH", "HOME", "TMPDIR", "LANG", "PWD", "SHLVL", "_", "OLDPWD")
        }
    secret.chmod(0o644)
    tmp_path.chmod(0o755)  # what root holds runs as another user
    async with Workspace(LIMITS, see=[str(tmp_path)]) as workspace:
        assert await said(workspace, f"cat {secret}") == "of the run"
        assert not (await workspace.run(["touch", f"{tmp_path}/x"])).right


def test_nothing_of_this_machine_is_seen_in_place_of_the_sandboxs_own() -> None:
    for path in ("/etc/hosts", "/etc", "/etc/", "/dev/shm", "/dev", "/", "/tmp"):
        with pytest.raises(ValueError, match="would hide"):
            Workspace(LIMITS, see=[path])
    for path, said in (("usr", "not absolute"), ("/usr/../etc", "not absolute"), ("/no", "exist")):
        with pytest.raises(ValueError, match=said):
            Workspace(LIMITS, see=[path])


async def test_a_machine_that_lacks_layers_is_refused_by_name_or_holds_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = ("mount namespace", "network namespace", "pid namespace")
    having = {name: how for name, how in offered().having.items() if name not in lacks}
    fewer = Offer(having, dict.fromkeys(lacks, "left out by a test"))
    monkeypatch.setattr("rlax_plugin.reward.sandbox.sandbox.offered", lambda: fewer)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SandboxError, match="mount namespace"):
        Workspace(LIMITS)
    async with Workspace(LIMITS, port=5, allow_weak=True) as workspace:
        assert workspace.reached == 5
        ended = await workspace.run(["/bin/sh", "-c", "echo 1 > a; (setsid sleep 60 &) ; pwd"])
        place = ended.stdout.decode().strip()
        assert "rlax-sandbox-" in place, ended
        assert (await workspace.run(["/bin/cat", "a"])).stdout == b"1\n"
        for hidden in (__file__, "/etc/passwd"):
            assert not (await workspace.run(["/bin/cat", hidden])).right
        tree = psutil.Process().children(recursive=True)
        assert sum(one.name() == "sleep" for one in tree) == 0
    await _until(lambda: not os.path.exists(place))


async def test_an_environment_that_is_seen_has_its_own_python(tmp_path: Path) -> None:
    for name in ("base/bin", "environment/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "base/pip.conf").write_text("a key")
    (tmp_path / "base/bin/python").write_text("#!/bin/sh\necho its own\n")
    (tmp_path / "environment/bin/python").symlink_to(tmp_path / "base/bin/python")
    (tmp_path / "environment/pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\n")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    async with Workspace(LIMITS, see=[str(tmp_path / "environment")]) as workspace:
        assert await said(workspace, f"{tmp_path}/environment/bin/python; python") == (
            "its own\nits own"
        )
        assert not (await workspace.run(["cat", f"{tmp_path}/base/pip.conf"])).right


async def test_beside_the_link_of_an_environments_python_nothing_is_seen(tmp_path: Path) -> None:
    for name in ("home/bin", "home/lib", "home/share", "home/pythons/3/bin", "environment"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/lib/key").write_text("a key")
    (tmp_path / "home/share/key").write_text("a key")
    (tmp_path / "home/pythons/3/bin/python3").write_text("#!/bin/sh\necho its own\n")
    (tmp_path / "home/bin/python3").symlink_to(tmp_path / "home/pythons/3/bin/python3")
    (tmp_path / "environment/pyvenv.cfg").write_text(f"home = {tmp_path}/home/bin\n")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    async with Workspace(LIMITS, see=[str(tmp_path / "environment")]) as workspace:
        assert await said(workspace, f"{tmp_path}/home/bin/python3") == "its own"
        assert await said(workspace, f"ls {tmp_path}/home") == "bin\npythons"


async def test_nothing_outlives_its_holder() -> None:
    script = (
        "import asyncio\nfrom rlax_plugin.api import Workspace\n"
        "async def main():\n"
        "    async with Workspace() as one:\n"
        "        print('begun', flush=True)\n"
        "        await one.run(['sh', '-c', 'trap \"\" TERM; setsid sleep 99 & sleep 99'])\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", script]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"begun\n"

        def tree() -> list[psutil.Process]:
            return psutil.Process(holder.pid).children(recursive=True)

        await _until(lambda: sum(one.name() == "sleep" for one in tree()) == 2)
        left = tree()
        holder.kill()
    assert psutil.wait_procs(left, 60)[1] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_an_ordinary_user_has_the_same_workspace() -> None:
    script = (
        "import asyncio, json\nfrom rlax_plugin.api import Workspace\n"
        "async def main():\n"
        "    async with Workspace() as one:\n"
        "        await one.put({'a': b'1'})\n"
        "        ended = await one.run(['sh', '-c', 'id -u; cat a; touch /usr/x || git init -q'])\n"
        "        print(json.dumps([ended.code, ended.stdout.decode(), *await one.take(['a'])]))\n"
        "asyncio.run(main())"
    )
    helper = REPOSITORY / "tests/helpers/ordinary_user.py"
    done = subprocess.run(
        [sys.executable, str(helper), sys.executable, "-c", script],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout) == [0, "1\n1", "a"]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


def test_an_end_by_a_limit_trains_as_wrong() -> None:
    for why in ("time", "memory", "output", "signal"):
        ending = Ended(why, -9, b"", b"").ending
        assert ending is not None and ending.trains == "as wrong"
