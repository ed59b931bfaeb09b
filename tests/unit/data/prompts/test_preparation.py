"""The process that prepares: what it does once, how it fails, and that it ends with its parent."""

import importlib.metadata
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from data_sets import Listed, jsonl, listed, tokenizer, write_lines
from small_tokenizers import byte_fallback, byte_level
from waiting import wait_until

from rlax_plugin.api import ConfigError, DeadlineError, PromptTable, RlaxError, Tokenizer

ROWS = [{"question": f"{n}?", "answer": n} for n in range(600)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """The processes that were started."""
    found: list[subprocess.Popen] = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return found


def test_it_is_prepared_once_and_then_opened(
    tmp_path: Path, cache: Path, started: list[subprocess.Popen]
) -> None:
    file = write_lines(tmp_path / "a.jsonl", ROWS)
    told: list[tuple[str, int]] = []
    note = lambda what, rows: told.append((what, rows))  # noqa: E731
    source = jsonl(file, held_out={"test": 0.1}, progress=note)
    train, test = source.prompts("train"), source.prompts("test")
    assert isinstance(train, PromptTable) and len(train) + len(test) == 600 and len(test) > 20
    assert {what for what, _ in told} == {"reading train"}
    assert source.prompts("train") is train and len(started) == 1
    again = jsonl(file, held_out={"test": 0.1}).prompts("train")
    assert again.digest == train.digest and len(started) == 1
    assert again[5].id == train[5].id
    assert again.place_of(5) == f"{file}, line {int(again[5].reference) + 1},"

    (kept,) = cache.iterdir()  # nothing else was left behind
    (kept / "train.arrow").write_bytes(b"ARROW1\0\0" + b"x" * 100)
    assert jsonl(file, held_out={"test": 0.1}).prompts("train").digest == train.digest
    assert len(started) == 2 and list(cache.iterdir()) == [kept]

    os.utime(file, ns=(1, 1))
    assert jsonl(file, held_out={"test": 0.1}).prompts("train").digest == train.digest
    assert len(started) == 3 and all(one.returncode is not None for one in started)


def test_other_files_of_the_tokenizer_or_other_libraries_prepare_it_anew(
    tmp_path: Path, started: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, model = write_lines(tmp_path / "a.jsonl", ROWS[:3]), tmp_path / "model"

    def prepared() -> PromptTable:
        return jsonl(file, tokens=Tokenizer.load(model, "tokenizer_path")).prompts("train")

    byte_level(model)
    before = prepared()
    byte_fallback(model)  # in its place
    assert prepared().digest != before.digest and len(started) == 2
    versions = {name: importlib.metadata.version(name) for name in ("tokenizers", "transformers")}
    for library in versions:
        monkeypatch.setattr(importlib.metadata, "version", {**versions, library: "9.9"}.get)
        assert len(prepared()) == 3
    assert len(started) == 4


def test_what_was_not_opened_for_long_is_removed(cache: Path) -> None:
    (cache / "old").mkdir(parents=True)
    (cache / "recent").mkdir()
    os.utime(cache / "old", (1, 1))
    listed(ROWS[0]).prompts("train")
    assert len(list(cache.iterdir())) == 2 and (cache / "recent").exists()


def test_an_unknown_split_names_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as raised:
        listed(ROWS[0], held_out={"test": 0.1}).prompts("tset")
    assert str(raised.value) == (
        "split of rlax.prompt_source = 'tset': no such split; did you mean 'test'? known: test, "
        "train; splits and held_out make others"
    )


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (
            "raise __import__('rlax_plugin.api').api.ConfigError('rlax.prompt_source.x', 5, 'no')",
            ConfigError,
            "rlax.prompt_source.x = 5: no",
        ),
        ("raise OSError('disk')", RlaxError, "prompts cannot be prepared: disk"),
        ("print(5); 1 / 0", RlaxError, "ended with status 1: ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", RlaxError, "ended with status -9: it said nothing"),
    ],
)
def test_how_it_fails(
    end: str, kind: type[Exception], message: str, cache: Path, started: list[subprocess.Popen]
) -> None:
    with pytest.raises(kind) as raised:
        listed(*ROWS, end=end).prompts("train")
    assert message in str(raised.value)
    assert not list(cache.iterdir()) and started[0].returncode is not None


def test_what_libraries_print_and_read_is_no_answer() -> None:
    end = (
        "import os, sys; print('{\"done\": 1}'); os.write(1, b'{}\\n'); assert not sys.stdin.read()"
    )
    assert len(listed(*ROWS, end=end).prompts("train")) == 600


def test_one_that_hangs_ends_by_the_deadline_with_what_it_started(
    tmp_path: Path, started: list[subprocess.Popen]
) -> None:
    end = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '600']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(600)"
    )
    source = listed(*ROWS[:1], end=end, deadline_s=2)
    with pytest.raises(DeadlineError) as raised:
        source.prompts("train")
    assert str(raised.value) == (
        "preparing prompts without reading another row took longer than 2 s (set "
        "rlax.deadlines.prompts_s to wait longer)"
    )
    assert started[0].returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess, FileNotFoundError, ValueError):  # it may not come that far
        psutil.Process(int((tmp_path / "pid").read_text())).wait(60)


def test_a_class_that_no_other_process_finds_is_refused() -> None:
    class Inner(Listed):
        pass

    source = Inner(listed(ROWS[0]).config, tokenizer(), max_tokens=9)
    with pytest.raises(RlaxError, match="must be at the top of a module that can be imported"):
        source.prompts("train")


def test_it_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pid"
    end = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = (
        f"from data_sets import listed; listed({{'question': 'x'}}, end={end!r}).prompts('train')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))  # it is killed, and removes nothing
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: parent.poll() is not None or (file.exists() and file.read_text()))
        assert parent.poll() is None
        child = psutil.Process(int(file.read_text()))
    finally:
        parent.kill()
        parent.wait()
    child.wait(60)
