"""The list of allowed system calls: what is not on it is refused, and Python can do without."""

import errno
import json
import os
import signal
import socket

import pytest
from sandbox_driver import Driver

from rlax_plugin.reward.sandbox import calls, seccomp

NUMBERS = range(601)
NAMED = {"listmount": 458, "statmount": 457, "io_uring_setup": 425, "pidfd_getfd": 438}
# On x86_64 new kernels do not ask a filter about uretprobe and uprobe, which end a process with
# SIGILL, or fail with ENXIO, if it was not the kernel that has put the call there.
UNFILTERED = {335, 336} if os.uname().machine == "x86_64" else set()


def filtered(
    architecture: str,
    number: int,
    *arguments: int,
    audit: int | None = None,
    programs: bool = False,
) -> int:
    """What the filter of an architecture answers to a call: it is interpreted here."""
    words = {seccomp.AT_NUMBER: number}
    words[seccomp.AT_ARCHITECTURE] = audit or calls.ARCHITECTURES[architecture][1]
    for place, value in enumerate((*arguments, 0, 0)):
        words[seccomp.AT_ARGUMENTS + 8 * place] = value
    steps, at, word = seccomp.steps(architecture, programs=programs), 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == seccomp.RETURN:
            return value
        if code == seccomp.LOAD:
            word = words[value]
            continue
        holds = {
            seccomp.JUMP_EQUAL: word == value,
            seccomp.JUMP_AT_LEAST: word >= value,
            seccomp.JUMP_ABOVE: word > value,
            seccomp.JUMP_SET: bool(word & value),
        }[code]
        at += if_true if holds else if_false


@pytest.mark.parametrize("architecture", calls.ARCHITECTURES)
def test_the_filter_allows_the_list_and_nothing_else(architecture: str) -> None:
    column = calls.ARCHITECTURES[architecture][0]
    allowed = {numbers[column] for numbers in calls.ALLOWED.values()} - {None}
    some = {numbers[column] for numbers, _, _ in calls.BY_ARGUMENT.values()}
    assert not allowed & (some | {calls.CLONE[column]})
    for number in (*NUMBERS, 0x40000000, 0x40000001, 0xFFFFFFFF):
        refused = seccomp.NOT_THERE if number >= 424 else seccomp.NOT_PERMITTED
        if number in allowed:
            refused = seccomp.ALLOW
        assert filtered(architecture, number, 0x99999999, 0x99999999) == refused, number
    for numbers, place, values in calls.BY_ARGUMENT.values():
        for value in values:
            arguments = (*[0x77777777] * place, value)
            assert filtered(architecture, numbers[column], *arguments) == seccomp.ALLOW
    clone = calls.CLONE[column]
    assert filtered(architecture, clone, 0x3D0F00) == seccomp.ALLOW  # as pthread_create has it
    for bit in (7, 17, 25, 26, 27, 28, 29, 30):
        assert filtered(architecture, clone, 0x3D0F00 | 1 << bit) == seccomp.NOT_PERMITTED
    assert filtered(architecture, 0, audit=0x40000003) == seccomp.KILL  # 32 bits


@pytest.mark.parametrize("architecture", calls.ARCHITECTURES)
def test_the_filter_of_programs_allows_what_they_need_more_and_nothing_else(
    architecture: str,
) -> None:
    column = calls.ARCHITECTURES[architecture][0]
    more = {numbers[column] for numbers in calls.OF_PROGRAMS.values()} - {None}
    arguments = 0x99999999, 0x99999999
    for number in NUMBERS:
        for_code = filtered(architecture, number, *arguments)
        found = filtered(architecture, number, *arguments, programs=True)
        assert found == (seccomp.ALLOW if number in more else for_code), number
        assert number not in more or for_code != seccomp.ALLOW
    number = calls.BY_ARGUMENT["socket"][0][column]
    for family in range(64):
        code = filtered(architecture, number, family)
        found = filtered(architecture, number, family, programs=True)
        assert found == (seccomp.ALLOW if family == socket.AF_INET else code), family


def test_no_number_is_listed_twice() -> None:
    for column in (0, 1):
        listed = [*calls.ALLOWED.values(), *calls.OF_PROGRAMS.values()]
        numbers = [one[column] for one in listed if one[column] is not None]
        assert len(numbers) == len(set(numbers)) > 130


def test_every_number_that_is_not_listed_is_refused(driver: Driver) -> None:
    column = calls.ARCHITECTURES[os.uname().machine][0]
    tried = set(NUMBERS) - {numbers[column] for numbers in calls.ALLOWED.values()}
    tried -= {calls.CLONE[column]}
    code = (
        "import ctypes, json, os\nlibc = ctypes.CDLL(None, use_errno=True)\nsaid = {}\n"
        "def answer(number):\n"
        "    ctypes.set_errno(0)\n"
        "    found = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)\n"
        "    return ctypes.get_errno() if found == -1 else 0\n"
        f"for number in {sorted(tried - UNFILTERED)}: said[number] = answer(number)\n"
        f"for number in {sorted(UNFILTERED)}:\n"
        "    if not os.fork(): os._exit(answer(number))\n"
        "    said[number] = os.waitstatus_to_exitcode(os.wait()[1])\n"
        "print(json.dumps(said))"
    )
    ended = driver.run(code)
    assert ended.right, ended
    said = {int(number): found for number, found in json.loads(ended.stdout).items()}
    assert {said.pop(one) for one in UNFILTERED} <= {errno.EPERM, errno.ENXIO, -signal.SIGILL}
    assert said == {one: errno.ENOSYS if one >= 424 else errno.EPERM for one in tried - UNFILTERED}
    assert set(NAMED.values()) <= said.keys()


WORKS = """
import asyncio, concurrent.futures, ctypes, mmap, os, random, resource, secrets, select, shutil
import signal, socket, sqlite3, tempfile, threading, time, zoneinfo
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    assert list(pool.map(lambda x: x * 2, range(9))) == [2 * x for x in range(9)]
async def slow(x):
    await asyncio.sleep(0.001)
    return await asyncio.to_thread(lambda: x + 1)
async def both(): return await asyncio.gather(slow(1), slow(2))
assert asyncio.run(both()) == [2, 3]
read, write = os.pipe()
if not (child := os.fork()):
    os.write(write, b"from the child")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert os.read(read, 99) == b"from the child" and select.select([write], [], [], 0) == ([], [], [])
poll = select.epoll()
poll.register(write, select.EPOLLOUT)
assert poll.poll(1)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a")
    with open(path, "w+b") as file:
        file.write(b"x" * 5000)
        file.flush()
        with mmap.mmap(file.fileno(), 0) as mapped:
            assert mapped[4999:] == b"x"
        file.truncate(7)
        assert not file.isatty()
    shutil.copy2(path, path + "b")
    os.replace(path + "b", path + "c")
    os.symlink("a", path + "d")
    os.chmod(path, 0o400)
    os.utime(path, (1, 1))
    assert os.stat(path).st_size == 7 and os.stat(path).st_mtime == 1 and os.access(path, os.R_OK)
    assert sorted(os.listdir(folder)) == ["a", "ac", "ad"]
    base = sqlite3.connect(path + "e")
    with base:
        base.execute("create table t(x)")
        base.executemany("insert into t values (?)", [(1,), (2,)])
    assert base.execute("select sum(x) from t").fetchone() == (3,)
ones, others = socket.socketpair()
ones.settimeout(1)
others.sendall(b"hello")
assert ones.recv(9) == b"hello"
caught = []
signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.001)
signal.pause()
assert caught and signal.sigtimedwait([], 0) is None
time.sleep(0.001)
assert len(secrets.token_bytes(9)) == 9 and random.SystemRandom().random() < 1
assert zoneinfo.ZoneInfo("UTC") and ctypes.CDLL(None).getpid() == os.getpid()
assert len(os.sched_getaffinity(0)) and os.cpu_count() and resource.getrusage(0).ru_maxrss
assert os.getloadavg() and os.times() and os.uname() and shutil.get_terminal_size().columns
resource.setrlimit(resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK))
thread = threading.Thread(target=print, args=("all of it",), name="one")
thread.start()
thread.join()
"""


def test_python_works(driver: Driver) -> None:
    ended = driver.run(WORKS, file_bytes=1 << 20)
    assert (ended.stdout, ended.stderr, ended.code) == (b"all of it\n", b"", 0)


def test_what_of_the_machine_can_be_seen(driver: Driver) -> None:
    code = (
        "import ctypes, json, os, socket\nlibc = ctypes.CDLL(None)\n"
        "uname = ctypes.create_string_buffer(6 * 65)\nassert libc.uname(uname) == 0\n"
        "def there(path):\n    try: os.lstat(path)\n    except OSError: return False\n"
        "    return True\n"
        "places = ['/proc', '/sys', '/run', '/var', '/home', '/etc/hostname', '/dev/shm']\n"
        "print(json.dumps([os.uname().nodename, socket.gethostname(),\n"
        "    uname.raw[5 * 65:].split(b'\\0')[0].decode(), list(filter(there, places)),\n"
        "    dict(os.environ), os.getpid() < 99, os.getppid()]))"
    )
    ended = driver.run(code)
    assert ended.right, ended
    *said, parent = json.loads(ended.stdout)
    assert said == ["sandbox", "sandbox", "sandbox", [], {}, True]
    assert parent in (0, 1)
    assert socket.gethostname() != "sandbox"  # out here it is as it was
