"""The environment ``program``: hostile programs are held; what they leave is graded elsewhere."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import rlax_http.program
from hacks_of_graders import CASES, GRADER, HACKS, HONEST, WRONG
from pydantic import ValidationError
from rlax_http.failures import ServerError
from rlax_http.program import Program, ProgramConfig, check_program
from sections import section_with

from rlax_plugin.api import ConfigError, Outcome, sandbox_layers
from rlax_plugin.testing import make_prompt

pytestmark = pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")

SMALL = {"time_s": 5.0, "memory_mib": 64, "disk_mib": 8, "processes": 8}
RIGHT = "print('{\"reward\": 1}')"


class Door:
    """One that a program reaches; what it asks is counted, and not answered."""

    def __init__(self) -> None:
        self.access = SimpleNamespace(
            api_key="the-key", model="m", used=True, failed=False, sampling=False, in_order=True
        )
        self.access.requests = {"begun": 1}
        self.closed = False

    @asynccontextmanager
    async def open(self, session: Any) -> AsyncIterator[Any]:
        async def close(reader: Any, writer: asyncio.StreamWriter) -> None:
            writer.write(b"reached")
            writer.close()

        server = await asyncio.start_server(close, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        yield SimpleNamespace(**vars(self.access), base_url=f"http://127.0.0.1:{port}/v1")
        server.close()
        self.closed = True


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    door = Door()
    monkeypatch.setattr(rlax_http.program, "EpisodeDoor", lambda *_: door)
    return door


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    before = psutil.Process().children(recursive=True)  # such as one that renders templates
    yield
    assert set(psutil.Process().children(recursive=True)) <= set(before)


async def played(source: str, tmp_path: Path, **options: Any) -> Outcome:
    (tmp_path / "agent.py").write_text(source)
    files = [str(tmp_path / "agent.py")]
    config = ProgramConfig(
        **{"command": ["python", "agent.py"], "files": files, **SMALL, **options}
    )
    section = section_with(environment={"name": "program"}, rewards=[])
    environment = Program(config, SimpleNamespace(section=section))  # type: ignore[arg-type]
    prompt = make_prompt("7", reference="14", metadata={"level": 1})
    return await environment.play(prompt, None)  # type: ignore[arg-type]


async def test_a_program_gets_its_task_and_says_the_outcome(door: Door, tmp_path: Path) -> None:
    source = (
        "import json, os, sys, urllib.parse, socket\ntask = json.load(sys.stdin)\n"
        "assert os.environ['OPENAI_BASE_URL'] == task['base_url']\n"
        "assert os.environ['OPENAI_API_KEY'] == task['api_key'] == 'the-key'\n"
        "assert os.environ['OPENAI_MODEL'] == task['model'] == 'm' and task['metadata']\n"
        "url = urllib.parse.urlsplit(task['base_url'])\n"
        "with socket.create_connection((url.hostname, url.port)) as one:\n"
        "    said = one.recv(99).decode()\n"
        "print('more')\nprint(json.dumps({'reward': 0.5, 'text': said + str(sorted(task))}))\n"
    )
    outcome = await played(source, tmp_path)
    fields = sorted(("api_key", "base_url", "metadata", "model", "task", "text"))
    text = f"reached{fields}"
    assert outcome == Outcome(text, metrics={"requests_begun": 1.0}, reward=0.5)
    assert door.closed
    source = "open('out.json', 'w').write('{\"reward\": 2}')"
    assert (await played(source, tmp_path, result="out.json")).reward == 2


# What becomes of a program that the policy may control: an ending that trains as wrong.
DEATHS = {
    "raise ValueError": "crashed",
    "import os; os.kill(os.getpid(), 9)": "crashed",
    "import os; os.kill(-1, 9)": "crashed",
    "x = bytearray(1 << 30)": "crashed",  # a MemoryError
    "import os\nfor _ in range(3): os.fork()\nx = []\nwhile True: x.append(bytearray(1 << 20))": "",
    "while True: print('flood' * 999)": "over_output",
    "while True: pass": "over_time",
    "import os, time\nif not os.fork(): os.setsid()\ntime.sleep(99)": "over_time",
    "import signal, time\nfor n in range(1, 32):\n    if n not in (9, 19):"
    " signal.signal(n, signal.SIG_IGN)\ntime.sleep(99)": "over_time",
    "import os\nwhile True: os.fork()": "",
    "open('x', 'wb').write(bytes(99 << 20))": "crashed",
    "open('x', 'wb').truncate(99 << 20)": "crashed",
    "import os\nfor n in range(10 ** 6): os.mkdir(str(n))": "crashed",
}


@pytest.mark.parametrize("source", DEATHS)
async def test_a_program_that_dies_pays_what_a_wrong_answer_pays(
    door: Door, tmp_path: Path, source: str
) -> None:
    # One that ends by itself has the time that a busy machine needs.
    time_s = 60.0 if DEATHS[source] in ("crashed", "over_output") else 2.0
    outcome = await played(source, tmp_path, wrong=-1.0, time_s=time_s)
    assert outcome.reward == -1.0 and outcome.ending is not None
    assert outcome.ending.trains == "as wrong"
    assert outcome.ending == (DEATHS[source] or outcome.ending)


async def test_what_the_policy_cannot_have_caused_trains_nothing(
    door: Door, tmp_path: Path
) -> None:
    for source, said in (
        ('print(\'{"reward": 1, "score": 2}\')', "the unknown field 'score'"),
        ("print('hello')", "no JSON in its last line: 'hello'"),
        ("print('[' * 99999)", "no JSON"),
        ("pass", "no JSON in its last line: ''"),
        ("print('{}')", "neither reward nor rewards"),
    ):
        with pytest.raises(ServerError, match=said):
            await played(source, tmp_path)
    door.access.failed = True
    with pytest.raises(ServerError, match="a request that failed here: exit code 1: ValueError"):
        await played("raise ValueError", tmp_path)
    with pytest.raises(ServerError, match="a request that failed here: exit code 0"):
        await played(RIGHT, tmp_path)
    door.access.used = False  # no room for its first request
    with pytest.raises(ServerError, match="a request that failed here") as raised:
        await played("raise ValueError", tmp_path)
    assert raised.value.passes
    door.access.failed = False
    with pytest.raises(ServerError, match="before it asked the policy: exit code 127: no-such"):
        await played("", tmp_path, command=["no-such"])


async def test_a_program_may_use_all_processors_for_its_time(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    source = (
        "import hashlib, threading, time\nbegun, data = time.process_time(), bytes(1 << 20)\n"
        "def work():\n    while time.process_time() - begun < 2.5: hashlib.sha256(data)\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "for one in threads: one.start()\nfor one in threads: one.join()\n"
    )
    door.access.sampling = True  # so that a busy machine has the time to run it
    assert (await played(source + RIGHT, tmp_path, time_s=1.0)).reward == 1


async def test_the_time_of_the_policy_is_not_the_programs(door: Door, tmp_path: Path) -> None:
    door.access.sampling = True
    assert (await played(f"import time; time.sleep(1)\n{RIGHT}", tmp_path, time_s=0.2)).reward == 1


async def test_a_hostile_program_sees_nothing_of_the_run(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither others' keys, the verifier's files, the run's directory, nor other processes."""
    (tmp_path / "expected.txt").write_text("42")
    monkeypatch.setenv("SECRET", "of the run")
    source = (
        "import glob, json, os, socket\nfound = []\n"
        f"for path in ({str(tmp_path)!r}, {str(Path.home() / '.bashrc')!r},"
        f" '/proc/{os.getpid()}/environ',\n"
        "             'expected.txt', '/etc/shadow', '/var', '/run', '/home', '/sys'):\n"
        "    try:\n"
        "        found.append(os.listdir(path) if os.path.isdir(path) else open(path).read())\n"
        "    except OSError: pass\n"
        "found += [name for name in os.environ if 'SECRET' in name]\n"
        "found += [pid for pid in range(2, 99999) if pid != os.getpid() and not kill(pid)]\n"
        "for path in glob.glob('/tmp/*') + glob.glob('/tmp/.*'):\n"
        # Where rlax is installed below /tmp, its environment is seen there.
        f"    if not path.endswith('agent.py') and not {sys.prefix!r}.startswith(path):\n"
        "        found.append(path)\n"
        "print(json.dumps({'reward': len(found), 'text': str(found)[:999]}))"
    )
    head = (
        "import os\ndef kill(pid):\n    try: os.kill(pid, 0)\n"
        "    except ProcessLookupError: return True\n    return False\n"
    )
    outcome = await played(head + source, tmp_path)
    assert (outcome.reward, outcome.text) == (0.0, "[]")


VERIFY = {"command": ["python", "grade.py"], "carry": ["solution.py"], "time_s": 10.0}


def verify(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "grade.py").write_text(GRADER)
    (tmp_path / "cases.json").write_text(CASES)
    return VERIFY | {"files": [str(tmp_path / "grade.py"), str(tmp_path / "cases.json")]}


@pytest.mark.parametrize("hack", HACKS)
async def test_no_hack_of_a_grader_pays(door: Door, tmp_path: Path, hack: str) -> None:
    source = f"{WRONG}{HACKS[hack]}\n"
    outcome = await played(source, tmp_path, verify=verify(tmp_path))
    assert outcome.reward == 0.0, outcome


async def test_what_was_solved_is_verified_even_if_the_program_died(
    door: Door, tmp_path: Path
) -> None:
    assert len(HACKS) == 20
    for source in (HONEST, f"{HONEST}; raise ValueError"):
        outcome = await played(source, tmp_path, verify=verify(tmp_path))
        assert outcome.reward == 1.0 and outcome.metrics["passed"] == 3
    many = "open('solution.py', 'w').write('#' * (2 << 20))"
    outcome = await played(many, tmp_path, verify=verify(tmp_path), wrong=-1.0)
    assert outcome.reward == -1.0 and outcome.ending == "crashed"
    outcome = await played(
        HONEST, tmp_path, verify=verify(tmp_path) | {"command": ["sleep", "60"], "time_s": 0.3}
    )
    assert outcome.ending == "over_time"


async def test_a_verifier_that_cannot_work_trains_nothing(door: Door, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(9 << 20))
    for options, said in (
        ({"command": ["pythn", "grade.py"]}, "cannot be executed: exit code 127: pythn"),
        ({"files": [str(tmp_path / "big")]}, "verify.files: files cannot be put"),
    ):
        with pytest.raises(ServerError, match=said):
            await played(HONEST, tmp_path, verify=verify(tmp_path) | options)
    # A verifier that runs, and exits in this way, may do so because of what was carried.
    exits = {"command": ["sh", "-c", "exit 127"]}
    outcome = await played(HONEST, tmp_path, verify=verify(tmp_path) | exits)
    assert outcome.ending == "crashed"


def checked(tmp_path: Path, **options: Any) -> str:
    """The config key that a start is refused for."""
    options = {"command": ["true"], **options}
    section = section_with(environment={"name": "program"}, rewards=[])
    with pytest.raises(ConfigError) as raised:
        check_program(ProgramConfig(**options), SimpleNamespace(section=section))  # type: ignore[arg-type]
    return str(raised.value)


def test_a_start_is_refused_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "missing")
    assert "rlax.environment.files" in checked(tmp_path, files=[missing])
    assert "rlax.environment.see" in checked(tmp_path, see=[missing])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    for name, said in (("pipe", "no file"), ("huge", "more than 64 MiB")):
        assert said in checked(tmp_path, files=[str(tmp_path / name)])
    verified = {"command": ["x"], "files": [missing]}
    assert "rlax.environment.verify.files" in checked(tmp_path, verify=verified)
    assert "must be at most 108, 90% of rlax.deadlines" in checked(tmp_path, time_s=109)
    with_verify = {"verify": {"command": ["true"], "time_s": 9}, "time_s": 100}
    assert "and rlax.environment.verify.time_s together" in checked(tmp_path, **with_verify)
    (tmp_path / "two").write_bytes(bytes(2 << 20))
    two = [str(tmp_path / "two")]
    refusal = checked(tmp_path, verify={"command": ["./two"], "files": two}, disk_mib=1)
    assert "rlax.environment.disk_mib" in refusal and "must be at least 2" in refusal
    for name in ("pythn", "./other", "two"):
        refusal = checked(tmp_path, verify={"command": [name], "files": two})
        assert "rlax.environment.verify.command" in refusal
        assert "rlax.environment.command" in checked(tmp_path, command=[name], files=two)
    lacking = SimpleNamespace(refusal=lambda: "this machine lacks layers: landlock (no)")
    monkeypatch.setattr(rlax_http.program, "sandbox_layers", lambda: lacking)
    assert "landlock" in checked(tmp_path)
    for options in (
        {"verify": {"command": ["x"], "carry": ["../x"]}},
        {"verify": {"carry": ["x"]}},
        {"verify": {"command": ["x"]}, "result": "y"},
        {"command": []},
    ):
        with pytest.raises((ConfigError, ValidationError)):
            ProgramConfig(**{"command": ["true"], **options})
