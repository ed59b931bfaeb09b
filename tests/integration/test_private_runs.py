"""What other users of the machine can read of a run, and what its processes inherit."""

import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import rlax
from data_sets import write_lines
from inheritance import Inheritance
from other_user import readable_by_stranger
from planted import plant
from processes import python_path
from runs import DEADLINE_S, HELPERS, Run, plugins
from small_tokenizers import CHATML, characters
from waiting import wait_until

from rlax_plugin.rpc.security.run_secrets import known_secrets

pytestmark = [pytest.mark.slow, pytest.mark.ci]

SECRET = "a-secret-that-no-process-may-have"
ROWS = [{"prompt": f"{n}?", "answer": n, "tests": ["assert True"]} for n in range(40)]
KINDS = {
    "rlax_plugin serve",
    "rlax_plugin.data.prompts.reading_process",
    "rlax_plugin.base.processes.limited_process",
    "rlax_plugin.run.programs.reward",
    "rlax_plugin.base.tokens.template_process",
    "rlax_plugin.reward.sandbox.server",
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
        "name": "jsonl",
        "path": "rows.jsonl",
        "held_out": {"test": 0.3},
        "tokenizer": "model",
        "chat": True,
    }
    before = os.umask(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", python_path(HELPERS))
            patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
            patch.setenv("XDG_STATE_HOME", str(place / "home"))
            patch.setenv("TMPDIR", str(place / "tmp"))
            run = Run(
                place,
                plugins("chat_numbers"),
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
            time.sleep(0.2)  # a look takes most of a core
            return run.process.poll() is not None

        wait_until(watched_to_its_end, "the run's end", limit_s=DEADLINE_S)
        status, said = run.end()
        assert status == 0, said
        yield Watched(place, run, inheritance, sorted(seen), trap)
    finally:
        os.umask(before)
        Run.end_all()
        shutil.rmtree(place)


def test_the_uppermost_directories_are_private_whatever_the_umask(watched: Watched) -> None:
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in watched.own.items()}
    assert modes == dict.fromkeys(watched.own, 0o700)
    # As the umask says, but for the right of all to write.
    assert stat.S_IMODE((watched.place / "runs").stat().st_mode) == 0o775


def test_nothing_that_a_run_writes_is_writable_for_all_whatever_the_umask(watched: Watched) -> None:
    written = [*watched.place.rglob("*")]
    assert watched.place / "home/rlax/tokens" in written
    open_ = [str(path) for path in written if path.lstat().st_mode & 0o002]
    assert [path for path in open_ if not os.path.islink(path)] == []


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


def test_processes_of_a_run_inherit_nothing_of_the_trainer(watched: Watched) -> None:
    assert watched.inheritance.kinds >= KINDS
    assert watched.inheritance.found == set()


def test_no_process_of_a_run_imports_from_its_working_directory(watched: Watched) -> None:
    assert not watched.trap.exists(), watched.trap.read_text()


def test_a_run_that_others_can_write_to_is_neither_continued_nor_written_to(
    watched: Watched,
) -> None:
    run = watched.run.dir
    commands = {"report": [], "replay": [], "eval": ["--problems", "1"]}
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
