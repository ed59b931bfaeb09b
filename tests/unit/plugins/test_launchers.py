"""The launcher ``local`` tries a worker that fails again for as long as the run lives."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import rlax_launchers as module
from waiting import eventually

from rlax_plugin.run.start.generation_start import show_failing

ENDS_WITH_2 = "echo the token file has mode 0644; exit 2"


@pytest.fixture
def local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., contextlib.AbstractAsyncContextManager[tuple[module.Local, list[str]]]]:
    """Starts workers that are scripts of ``sh``, whose ``$3`` is the name of the worker."""

    @contextlib.asynccontextmanager
    async def started(script: str, **options: Any) -> Any:
        monkeypatch.setattr(module, "python_command", lambda *args: ["sh", "-c", script])
        errors: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["message"]))
        launcher = module.Local(module.LocalConfig(**options))
        await launcher.start("127.0.0.1:1", tmp_path, tmp_path / "token")
        try:
            yield launcher, errors
        finally:
            await launcher.stop()

    return started


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_config_that_no_worker_can_start_with_ends_the_run_at_once(
    local: Any, workers: int
):
    async with local(ENDS_WITH_2, workers=workers) as (launcher, errors):
        (error,) = await eventually(lambda: list(errors))
        assert "ended 1 times in a row, the last time with status 2: the token file" in error
        assert launcher.restarts == 0


async def test_workers_that_fail_at_their_start_end_the_run_after_max_restarts(local: Any):
    async with local("echo broken; exit 1", max_restarts=1) as (launcher, errors):
        (error,) = await eventually(lambda: list(errors))
        assert "ended 2 times in a row, the last time with status 1: broken" in error
        assert launcher.restarts == 1


async def test_a_worker_that_has_worked_is_tried_again_and_its_failures_count_anew(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    works, ends = tmp_path / "works", tmp_path / "ends"
    script = f"test -e {works} || exit 1; until test -e {ends}; do sleep 0.02; done; {ENDS_WITH_2}"

    async def fails_at_its_start(process: asyncio.subprocess.Process, seconds: float) -> bool:
        if works.exists():
            return False
        await process.wait()
        return True

    monkeypatch.setattr(module, "_ends_within", fails_at_its_start)

    async with local(script, max_restarts=5) as (launcher, errors):
        await eventually(lambda: "2 times in a row" in launcher.failing.get("local-0", ""))
        works.touch()
        await eventually(lambda: launcher._worked)
        ends.touch()
        sentence = await eventually(
            lambda: "status 2" in (said := launcher.failing.get("local-0", "")) and said
        )
        assert sentence.startswith("worker local-0 is started again at ")
        assert "ended 1 times in a row, the last time with status 2: the token file" in sentence
        assert errors == []


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        ("kill -9 $$", "by SIGKILL, as the kernel sends if memory is short (see dmesg): it wants"),
        ("kill -6 $$", "by SIGABRT: it wants 9 GiB"),
        ("exit 1", "with status 1: it wants 9 GiB"),
    ],
)
async def test_a_worker_that_is_started_again_at_once_is_shown_with_its_last_words(
    local: Any, ends: str, how: str
):
    async with local(f"echo it wants 9 GiB; {ends}", max_restarts=99) as (launcher, errors):
        sentence = await eventually(lambda: launcher.failing.get("local-0"))
        assert sentence.startswith("worker local-0 is started again at ")
        assert f"it ended 1 times in a row, the last time {how}" in sentence and not errors


async def test_one_of_two_workers_is_tried_again_until_it_works(local: Any, tmp_path, monkeypatch):
    mended, seen = tmp_path / "mended", list[str]()
    works = "{ echo it works; exec sleep 600; }"
    script = f"test -e {mended} -o $3 = local-1 && {works}; {ENDS_WITH_2}"
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.05)

    async with local(script, workers=2) as (launcher, errors):
        showing = asyncio.ensure_future(show_failing(launcher, seen.append, 0.01))
        await eventually(lambda: launcher.restarts > 2 and seen)
        mended.touch()
        log = tmp_path / "logs" / "local-0.log"
        await eventually(lambda: "it works" in log.read_text())
        showing.cancel()
        assert errors == [] and launcher.failing == {}
        assert all("worker local-0 is started again at " in line for line in seen)


async def test_a_worker_whose_log_cannot_be_opened_is_tried_again(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.05)
    (tmp_path / "logs" / "local-0.log").mkdir(parents=True)

    async with local("exec sleep 600", workers=2, max_restarts=0) as (launcher, errors):
        await eventually(lambda: "Is a directory" in launcher.failing.get("local-0", ""))
        (tmp_path / "logs" / "local-0.log").rmdir()
        await eventually(lambda: "local-0" in launcher._processes)
        assert errors == []


async def test_each_sentence_about_a_failing_worker_is_shown_once_in_one_line():
    said: list[str] = []
    lives: Iterator[Mapping[str, str]] = iter(
        [{"a": "a ended"}, {"a": "a ended"}, {"a": "a ended\nagain", "b": "b ended"}, {}]
    )
    over = asyncio.Event()

    class Launcher:
        @property
        def failing(self) -> Mapping[str, str]:
            found = next(lives)
            if not found:
                over.set()
                return {"b": "b ended"}
            return found

    showing = asyncio.ensure_future(show_failing(Launcher(), said.append, 0.0))
    await over.wait()
    showing.cancel()
    assert said == ["a ended", "a ended\\nagain", "b ended"]
