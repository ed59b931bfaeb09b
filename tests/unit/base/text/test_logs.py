"""A log in which what others say can neither begin a line nor reach a terminal."""

import logging
import sys

import pytest

from rlax_plugin.base.text.logs import log_to

FORGED = "2026-01-01 00:00:00,000 WARNING rlax all is well"
HOSTILE = f"a\n{FORGED}\r\x1b[2J\u2028b"


@pytest.fixture(autouse=True)
def _as_before():
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = capsys.readouterr().err
    assert text.replace("\n", "").isprintable()
    return text.splitlines()


def test_a_message_can_begin_no_other(capsys):
    log_to(sys.stderr)
    logging.getLogger("rlax").warning("a call of %s", HOSTILE)
    first, second = lines(capsys)
    assert first.endswith("WARNING rlax a call of a")
    assert second == rf"  {FORGED}\r\x1b[2J\u2028b"


def test_the_lines_of_an_error_are_indented(capsys):
    log_to(sys.stderr)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("rlax").exception("a request failed")
    first, *others = lines(capsys)
    assert first.endswith("ERROR rlax a request failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert others[-2:] == ["  ValueError: a", rf"  {FORGED}\r\x1b[2J\u2028b"]
