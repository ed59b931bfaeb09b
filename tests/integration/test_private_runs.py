"""What other users of the machine can read of a run, and what its processes inherit."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from command_line import rlax
from data_sets import write_lines
from inheritance import Inheritance
from other_user import readable_by_stranger
from planted import plant
from runs import DEADLINE_S, HELPERS, Run, plugins
from small_tokenizers import CHATML, characters
from starlette.responses import PlainTextResponse
from waiting import wait_until

from rlax_plugin.rpc.http import HttpServer
from rlax_plugin.rpc.run_secrets import known_secrets

SECRET = "a-secret-that-no-process-may-have"
ROWS = [{"prompt": f"{n}?", "answer": n, "tests": ["assert True"]} for n in range(40)]
KINDS = {
    "rlax_plugin serve",
    "rlax_plugin.prompts.reading_process",
    "rlax_plugin.processes.limited_process",
    "rlax_plugin.rewards.process",
    "rlax_plugin.tokens.template_process",
    "rlax_plugin.sandbox.server",
}


@dataclass(frozen=True)
class Watched:
    """A finished run whose processes were looked at.

    Attributes:
      open: what another user could read while it was going on.
      trap: where a module that lies in its working directory says that it was executed.
    """

    place: Path
    run: Run
    inheritance: Inheritance
    open: list[str]
    trap: Path

    @property
    def own(self) -> dict[str, Path]:
        """The uppermost directories of what the run has written."""
        return {
            "run": self.run.dir,
            "state": self.place / "state",
            "weights": self.place / "weights",
            "cache": self.place / "cache/rlax/prompts",
        }


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    # Not below pytest's directory, which no other user may enter anyway.
    place = Path(tempfile.mkdtemp(prefix="rlax-test-private-"))
    place.chmod(0o755)
    (place / "tmp").mkdir(0o755)
    characters(place / "model", template=CHATML)
    write_lines(place / "rows.jsonl", ROWS)
    trap = plant(place)
    source = {
        "name": "toy_jsonl",
        "path": "rows.jsonl",
        "held_out": {"test": 0.3},
        "tokenizer": "model",
        "chat": True,
    }
    before = os.umask(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", HELPERS)
            patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
            patch.setenv("XDG_STATE_HOME", str(place / "home"))
            patch.setenv("TMPDIR", str(place / "tmp"))
            run = Run(
                place,
                plugins("chat_numbers", "toy_data"),
                f"rlax.prompt_source={json.dumps(source)}",
                "rlax.rewards=[{name: digits}, {name: python_tests}, {name: math_verify}]",
                "rlax.environment={name: calculator, begin: '', end: '', result: '', after: '', "
                "max_calls: 1, role: tool}",
                "rlax.curation.filters=[]",
                "rlax.episodes.max_turns=2",
                "rlax.episodes.max_tokens=150",
                "rlax.rollouts.engine={name: scripted, latency_s: 0.1}",
                "rlax.rollouts.max_prompt_tokens=60",
                "rlax.evaluation.problems=0",
                "rlax.launcher.workers=2",
                "rlax.reward_processes=2",
                "rlax.network.prometheus_port=0",
                f"rlax.state_dir={place / 'state'}",
                f"rlax.weights.path={place / 'weights'}",
                "steps=6",
            )
        inheritance = Inheritance(run.process.pid, [SECRET])
        seen: set[str] = set()

        def watched_to_its_end() -> bool:
            if (made := known_secrets(place / "state")) is not None:
                key = made.identity.key.split("\n")[1]
                inheritance.secrets = [SECRET, made.trainer, made.worker, key]
            inheritance.look()
            if os.geteuid() == 0:
                own = (run.dir, place / "state", place / "weights", place / "cache", place / "tmp")
                seen.update(readable_by_stranger(*own)["read"])
            time.sleep(0.05)
            return run.process.poll() is not None

        wait_until(watched_to_its_end, "the run's end", limit_s=DEADLINE_S)
        status, said = run.end()
        assert status == 0, said
        yield Watched(place, run, inheritance, sorted(seen), trap)
    finally:
        os.umask(before)
        Run.end_all()
        shutil.rmtree(place)


@pytest.mark.slow
def test_the_uppermost_directories_are_private_whatever_the_umask(watched: Watched) -> None:
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in watched.own.items()}
    assert modes == dict.fromkeys(watched.own, 0o700)
    # As the umask says, but for the right of all to write.
    assert stat.S_IMODE((watched.place / "runs").stat().st_mode) == 0o775


@pytest.mark.slow
def test_nothing_that_a_run_writes_is_writable_for_all_whatever_the_umask(watched: Watched) -> None:
    written = [*watched.place.rglob("*")]
    assert watched.place / "home/rlax/tokens" in written
    open_ = [str(path) for path in written if path.lstat().st_mode & 0o002]
    assert [path for path in open_ if not os.path.islink(path)] == []


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_another_user_can_read_nothing_of_a_run(watched: Watched) -> None:
    for name, path in watched.own.items():
        inside = list(path.rglob("*"))
        assert any(one.is_file() for one in inside), name
        assert readable_by_stranger(path) == {"read": [], "refused": [str(path)]}
        assert readable_by_stranger(*inside)["read"] == []
    # What it could list while the run was going on are directories above, and empty.
    assert set(watched.open) <= {
        *(str(watched.place / name) for name in ("cache", "cache/rlax", "tmp"))
    }
    # It could have read what is not private.
    (watched.run.dir / "journal").chmod(0o777)
    watched.run.dir.chmod(0o755)
    assert len(readable_by_stranger(watched.run.dir)["read"]) > 5
    watched.run.dir.chmod(0o700)


@pytest.mark.slow
def test_processes_of_a_run_inherit_nothing_of_the_trainer(watched: Watched) -> None:
    assert watched.inheritance.kinds >= KINDS
    assert watched.inheritance.found == set()


@pytest.mark.slow
def test_no_process_of_a_run_imports_from_its_working_directory(watched: Watched) -> None:
    assert not watched.trap.exists(), watched.trap.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "eval runs/testing --problems 2 --json",
        "score runs/testing/config.yml completions.jsonl --json",
        "prompts runs/testing/config.yml --count 2 --json",
        "check-plugin rlax_plugin.testing",
    ],
)
def test_commands_import_nothing_from_their_working_directory(
    watched: Watched, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS)
    asked = {"prompt": "1?", "reference": "1", "metadata": {"tests": ["assert True"]}}
    write_lines(watched.place / "completions.jsonl", [asked | {"completion": "1"}])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rlax_plugin", *command.split()],
        cwd=watched.place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert not watched.trap.exists(), watched.trap.read_text()


@pytest.mark.slow
def test_a_run_that_others_can_write_to_is_neither_continued_nor_written_to(
    watched: Watched,
) -> None:
    run = watched.run.dir
    commands = {
        "report": [],
        "replay": [],
        "eval": ["--problems", "1"],
    }
    run.chmod(0o777)
    before = sorted(run.rglob("*"))
    try:
        for command, options in commands.items():
            done = rlax(command, str(run), *options)
            assert done.exit_code == 2, command
            assert done.stderr.startswith(
                f"error: RUN = '{run}': {run} has mode 0777, so other users could replace what is "
                f"written there: run chmod go-w {run}; or write elsewhere, with --out"
            )
        assert sorted(run.rglob("*")) == before
        elsewhere = watched.place / "report.html"
        assert rlax("report", str(run), "--out", str(elsewhere)).exit_code == 0
    finally:
        run.chmod(0o700)
    assert elsewhere.stat().st_size > 1000


def test_what_is_inherited_is_found(tmp_path: Path) -> None:
    """The helper itself: a process that has what no process of a run may have."""
    log, ledger = tmp_path / "trainer.log", tmp_path / "ledger.sqlite"
    server = HttpServer(PlainTextResponse(""), "127.0.0.1", 0)
    inheritance = Inheritance(os.getpid(), ["one-secret", "another-secret"])
    source, target = os.pipe()
    listener = next(
        int(name) for name in os.listdir("/proc/self/fd") if _is_listener(int(name), server.port)
    )
    with log.open("w") as file, ledger.open("w") as database:
        numbers = file.fileno(), database.fileno(), target, listener
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", "one-secret"],
            env={"NAME": "xanother-secretx"},
            stdin=subprocess.DEVNULL,
            pass_fds=numbers,
        )

        def six_sentences() -> bool:
            time.sleep(0.05)
            inheritance.look()
            return len(_of(child, inheritance)) >= 6

        try:
            wait_until(six_sentences, "what the child has")
        finally:
            child.kill()
            child.wait(60)
            server.close()
            os.close(source)
            os.close(target)
    assert _of(child, inheritance) == {
        f"{numbers[0]} is {log}, not opened to append",
        f"{numbers[1]} is {ledger}",
        f"{numbers[2]} is a pipe of another process",
        f"{numbers[3]} is a socket on which the trainer listens",
        "secret 0 is in the command line",
        "secret 1 is in the environment",
    }


def _of(child: subprocess.Popen[bytes], inheritance: Inheritance) -> set[str]:
    """The sentences on one child: this process may have others, which tests before have started."""
    start = " ".join(str(word) for word in cast("list[str]", child.args)) + ": "
    return {text.removeprefix(start) for text in inheritance.found if text.startswith(start)}


def _is_listener(number: int, port: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(number)) as one:
            return one.getsockname()[1] == port
    except (OSError, IndexError, TypeError):
        return False
