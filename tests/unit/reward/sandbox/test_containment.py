"""Code that wants out: each attempt is refused by name, and the sandbox still serves."""

import os
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from sandbox_driver import SECRET, Driver
from waiting import wait_until

from rlax_plugin.api import SandboxError

# Tries expressions and prints what became of each.
ATTEMPTS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    found = getattr(libc, name)(*arguments)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
for attempt in sys.stdin.read().splitlines():
    try:
        print(f"{attempt} -> {eval(attempt)!r}")
    except Exception as error:
        print(f"{attempt} -> {type(error).__name__}")
"""
BPF, KEYCTL = (321, 250) if os.uname().machine == "x86_64" else (280, 219)
PROBE = "import os; print(os.getpid() > 1, os.listdir('/tmp'))"


def attempts(driver: Driver, *expressions: str) -> list[str]:
    """What Python says of each: a value, or the class of an exception."""
    ended = driver.run(ATTEMPTS, "\n".join(expressions))
    assert ended.right, ended
    said = ended.stdout.decode().splitlines()
    return [line.removeprefix(f"{one} -> ") for one, line in zip(expressions, said, strict=True)]


def test_writes_outside_are_refused(driver: Driver, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    places = ("/x", "/usr/lib/x", f"{os.__file__}x", "/tmp/../x", str(outside))
    said = attempts(driver, *(f"open({place!r}, 'w')" for place in places))
    assert set(said) <= {"PermissionError", "FileNotFoundError", "OSError"}
    said = attempts(driver, f"os.remove({os.__file__!r})", "os.mkdir('/y')", "os.rmdir('/usr')")
    assert all(one.endswith("Error") for one in said), said
    assert not outside.exists() and Path(os.__file__).exists()


def test_files_of_this_machine_cannot_be_read(driver: Driver, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    os.chmod(secret, 0o644)
    hidden = (str(secret), __file__, "/etc/passwd", "/etc/hostname", "/proc/self/environ")
    said = attempts(driver, *(f"open({path!r}).read()" for path in hidden))
    assert said == ["FileNotFoundError"] * 5
    said = attempts(driver, "os.listdir('/home')", "os.listdir('/proc')", "os.listdir('/')")
    assert said == ["FileNotFoundError", "FileNotFoundError", "PermissionError"]
    assert (
        attempts(driver, "__import__('numpy')", "__import__('rlax_plugin.config')")
        == ["ModuleNotFoundError"] * 2
    )


def test_the_environment_is_empty(driver: Driver) -> None:
    assert attempts(driver, "dict(os.environ)", "libc.getenv(b'SECRET')") == ["{}", "0"]


def test_memory_does_not_hold_what_came_before(driver: Driver) -> None:
    driver.run("mark = 'a-mark-of-the-first-piece'\nprint(mark)\n#" + "x" * 5000)
    ended = driver.run(
        "import gc, sys\n"
        "found = [one for one in gc.get_objects() if isinstance(one, dict)\n"
        "         and any('a-mark-of' + '-the-first' in str(value) for value in one.values())]\n"
        "print(len(found), [name for name in sys.modules if 'json' in name] != [])"
    )
    assert ended.stdout == b"0 True\n", ended


def test_there_is_no_network(driver: Driver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"__import__('socket').create_connection(('127.0.0.1', {port}), 1)"
        kinds = ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET")
        made = [f"(s := __import__('socket')).socket(s.{kind})" for kind in kinds]
        assert attempts(driver, connect, *made) == ["PermissionError"] * 5
    # A local socket is of use inside, and does not lead out.
    name = f"\0rlax-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        said = attempts(
            driver,
            "__import__('socket').socketpair()[0].family.name",
            f"(s := __import__('socket')).socket(s.AF_UNIX).connect({name!r})",
        )
    assert said[0] == "'AF_UNIX'"
    assert said[1] in ("ConnectionRefusedError", "PermissionError")


def test_other_processes_cannot_be_signalled(driver: Driver) -> None:
    driver.run("")  # starts it
    before = driver.processes()
    targets = (driver.pid, os.getpid(), *(one.pid for one in before))
    said = attempts(driver, *(f"os.kill({pid}, 9)" for pid in targets if pid > 20))
    assert set(said) == {"ProcessLookupError"}
    # The server is process 1 in there.
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGCHLD):
        driver.run(f"import os\nos.kill(1, {int(number)})\nos.kill(os.getppid(), {int(number)})")
    driver.run("import os\nos.kill(-1, 9)")
    assert driver.run(PROBE).stdout == b"True []\n"
    assert driver.processes() == before


def test_neither_limits_nor_priority_of_the_server_can_be_changed(driver: Driver) -> None:
    said = attempts(
        driver,
        "__import__('resource').prlimit(1, 7, (0, 0))",
        "__import__('resource').setrlimit(0, (10**6, 10**6))",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.sched_setaffinity(1, {0})",
    )
    assert said == ["PermissionError", "ValueError", "PermissionError", "PermissionError"]


WAYS_OUT = (
    "call('ptrace', 16, 1, 0, 0)",
    "call('ptrace', 0, 0, 0, 0)",
    "call('process_vm_readv', 1, 0, 0, 0, 0, 0)",
    "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
    "call('umount', b'/tmp')",
    "os.unshare(os.CLONE_NEWUSER)",
    "os.unshare(os.CLONE_NEWNS)",
    "os.chroot('/tmp')",
    "os.setuid(0)",
    "os.setuid(5)",
    "os.execv(sys.executable, ['python'])",
    "__import__('subprocess').run(['/bin/sh'])",
    "os.memfd_create('x')",
    "call('shmget', 0, 4096, 0o1600)",
    f"call('syscall', {BPF}, 0, 0, 0)",
    f"call('syscall', {KEYCTL}, 0, 0, 0)",
    "__import__('socket').sethostname('x')",
    "os.mknod('/tmp/disk', 0o60600, 0x700)",
)


def test_ways_out_are_refused(driver: Driver) -> None:
    said = dict(zip(WAYS_OUT, attempts(driver, *WAYS_OUT), strict=True))
    # A program is not there at all, and a uid that the namespace does not have is "invalid".
    refused = ("PermissionError", "FileNotFoundError", "OSError")
    assert {attempt: error for attempt, error in said.items() if error not in refused} == {}


def test_it_has_no_capabilities(driver: Driver) -> None:
    number = {"x86_64": 125, "aarch64": 90}[os.uname().machine]
    code = (
        "import ctypes, os\n"
        "header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\n"
        f"print(ctypes.CDLL(None).syscall({number}, header, sets), list(sets), os.getgroups())\n"
        "print(os.getuid() == os.geteuid() != 0)"
    )
    assert driver.run(code).stdout.decode().startswith("0 [0, 0, 0, 0, 0, 0]"), driver.run(code)


def test_what_a_piece_leaves_is_gone(driver: Driver) -> None:
    lasting = (
        "import os, time\n"
        "open('/tmp/left', 'w').close()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.closerange(0, 3)\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "print('left it')"
    )
    assert driver.run(lasting).stdout == b"left it\n"
    assert len(driver.processes()) == 2
    assert driver.run(PROBE).stdout == b"True []\n"


def test_a_sandbox_that_is_killed_is_started_again(driver: Driver) -> None:
    driver.run("pass")
    before = driver.processes()

    def kill() -> None:
        wait_until(lambda: len(driver.processes()) > 2, "a process of the piece")
        before[-1].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SandboxError, match="was ended from outside while it ran") as raised:
        driver.run("import time\ntime.sleep(20)")
    killer.join()
    assert raised.value.ending == "process_ended"  # which trains nothing, whoever lets it pass
    assert driver.run(PROBE).stdout == b"True []\n"
    assert len(driver.processes()) == 2 and driver.processes() != before
    assert not any(one.is_running() for one in before)


@pytest.mark.parametrize("user", ["root", "ordinary"])
def test_nothing_outlives_its_holder(user: str) -> None:
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    with closing(Driver(user)) as driver:
        if driver.ask(offered=True)["missing"]:
            pytest.skip("layers are missing")
        driver.run("pass")
        left = driver.processes()
        assert len(left) == 2
        driver.begin("import os, time\nos.fork()\ntime.sleep(60)")
        driver.kill()
        assert psutil.wait_procs(left, 60)[1] == []
