"""Output that nobody reads: its writers go on, and dropped lines are counted."""

import logging
import os
import pty
import re
import threading
from collections.abc import Iterator

import pytest

from rlax_plugin.base.text import terminal as terminal_module
from rlax_plugin.base.text.terminal import console, quiet, threaded_text

LINES = 40_000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


def everything(descriptor: int) -> str:
    pieces = []
    while piece := os.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces).decode()


def test_lines_that_do_not_fit_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    read, write = pipe
    text = threaded_text(write, "unread")
    out = console(text)
    for number in range(LINES):  # 2.2 MB, of which a pipe takes 64 KiB
        out.print(f"{number:054}")
    text.close()  # nobody reads, and it returns
    seen = everything(read).splitlines()
    *kept, last = seen
    dropped = re.fullmatch(r"\(([\d,]+) lines were dropped: nothing took them\)", last)
    assert dropped is not None
    assert kept == [f"{number:054}" for number in range(len(kept))]
    assert len(kept) + int(dropped[1].replace(",", "")) == LINES
    assert 1 << 20 <= 55 * len(kept) < (1 << 20) + (1 << 17)


def test_a_reader_gets_all_lines_in_their_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    text = threaded_text(write, "read")
    for number in range(100):
        text.write(f"{number}\n")
        text.flush()
        assert os.read(read, 100) == f"{number}\n".encode()  # it is there once flush returns
    text.write("the end")
    text.close()
    assert everything(read) == "the end"


def test_a_terminal_that_is_gone_stops_nobody() -> None:
    controlling, terminal = pty.openpty()
    text = threaded_text(terminal, "gone")
    assert text.isatty()
    text.write("before\n")
    text.flush()
    os.close(controlling)
    for _ in range(3):
        text.write("after\n")  # EIO
        text.flush()
    text.close()
    with pytest.raises(OSError):
        os.fstat(terminal)


def test_a_message_of_a_log_does_not_wait_until_it_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(terminal_module, "_PATIENCE_S", 20.0)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    os.mkfifo(log_path := tmp_path / "trainer.log")
    read = os.open(log_path, os.O_RDONLY | os.O_NONBLOCK)
    seen, said = b"", threading.Event()

    def say() -> None:
        for number in range(2_000):  # more than the 64 KiB that a pipe takes without a reader
            logging.getLogger("rlax").info("%060d", number)
        said.set()

    with quiet(log_path):
        try:
            threading.Thread(target=say, daemon=True).start()
            assert said.wait(15), "a message waits for the reader"
            os.set_blocking(read, True)
            while not seen.endswith(b"1999\n"):
                seen += os.read(read, 1 << 16)
        finally:
            os.close(read)
    assert [int(line.split()[-1]) for line in seen.splitlines()] == list(range(2_000))


def test_output_is_not_redirected_if_no_thread_can_be_started(tmp_path, monkeypatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = [os.dup(1), os.dup(2)]
    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        with pytest.raises(RuntimeError, match="new thread"), quiet(tmp_path / "trainer.log"):
            pass
        assert all(os.path.sameopenfile(known, fd) for fd, known in enumerate(before, 1))
    finally:
        for fd, known in enumerate(before, 1):
            os.dup2(known, fd)
            os.close(known)
