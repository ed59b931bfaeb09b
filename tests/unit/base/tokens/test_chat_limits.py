"""Templates that take as much as they can get end within their limits, and hurt no other."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from small_tokenizers import CHATML, byte_level
from waiting import wait_until

from rlax_plugin.api import ChatTemplateError, Tokenizer
from rlax_plugin.base.tokens.rendering import RenderLimits

QUESTION = {"role": "user", "content": "1+1?"}
LIMITS = RenderLimits(render_s=60.0, memory_bytes=64 << 20)
SHORT = RenderLimits(render_s=0.3, memory_bytes=64 << 20)

_LOOPS = "{% for i in range(99999) %}" * 3 + "{% set x = i %}" + "{% endfor %}" * 3
_ITSELF = "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}"
_DOUBLES = "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
MEMORY, TIME = "needs more than 64 MB", r"took longer than 0\.3 s \(rlax\.deadlines\.template_s\)"
BOMBS = {
    "a constant, which is computed by compiling": ("{{ 'a' * 10**10 }}", MEMORY),
    "doubling": (_DOUBLES + "{% endfor %}{{ ns.x }}", MEMORY),
    "a large range": ("{{ range(10**9) | list | length }}", "Range too big"),
    "recursion": (_ITSELF, "maximum recursion depth"),
    "a large power": ("{{ (messages | length + 9) ** (10**8) }}", TIME),
    "deep brackets": ("{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}", "failed: "),
    "a long answer": ("{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}", "failed: "),
}


def load(directory: Path, template: str = CHATML, limits: RenderLimits = LIMITS) -> Tokenizer:
    path = byte_level(directory, template=template)
    return Tokenizer.load(path, "tokenizer_path", {}, limits)


@pytest.mark.parametrize("template, message", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_one_error_with_the_file_of_the_template(
    tmp_path: Path, template: str, message: str
) -> None:
    tokenizer = load(tmp_path, template, SHORT if message is TIME else LIMITS)
    with pytest.raises(ChatTemplateError, match=message) as raised:
        tokenizer.render([QUESTION])
    assert str(raised.value).startswith(f"the chat template in {tmp_path}/chat_template.jinja ")
    assert len(str(raised.value)) < 1000


def test_a_bomb_costs_other_templates_nothing(tmp_path: Path) -> None:
    good = load(tmp_path / "good")
    bad = load(tmp_path / "bad", _LOOPS, RenderLimits(render_s=0.05))
    before = good.render([QUESTION])
    with pytest.raises(ChatTemplateError, match="took longer"):
        bad.chat.render_all([[QUESTION]] * 2)
    assert good.render([QUESTION]) == before


def test_threads_get_the_answers_to_their_own_questions(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, limits=RenderLimits())
    wrong: list[str] = []

    def ask(name: str) -> None:
        for i in range(50):
            said = f"{name}{i}"
            if said not in tokenizer.decode(tokenizer.render([QUESTION | {"content": said}])):
                wrong.append(said)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not wrong


def test_what_json_cannot_hold_is_no_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a message cannot be written as JSON"):
        load(tmp_path).render([QUESTION | {"content": object()}])


@pytest.fixture
def child():
    """The process that renders, as its line says; ends with the test."""
    command = [sys.executable, "-m", "rlax_plugin.base.tokens.template_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def _asked(process: subprocess.Popen[bytes], **line: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(line).encode() + b"\n")
    process.stdin.flush()


def _load(process: subprocess.Popen[bytes], directory: Path, template: str) -> None:
    path = byte_level(directory, template=template)
    _asked(process, number=1, directory=str(path), source=template, arguments={})
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"done": True}


def test_the_process_ends_by_itself_if_nobody_is_left_to_end_it(tmp_path, child) -> None:
    _load(child, tmp_path, _LOOPS)
    limits = {"limit_s": 0.1, "memory_bytes": 256 << 20}
    _asked(child, number=1, limits=limits, prompt=True, tools=[], given=[[QUESTION]])
    assert child.wait(60) == -signal.SIGXCPU  # of the processor time


def test_the_process_outlives_a_ctrl_c_but_not_its_parent(tmp_path, child) -> None:
    _load(child, tmp_path, CHATML)
    os.kill(child.pid, signal.SIGINT)
    os.kill(child.pid, signal.SIGTERM)
    limits = {"limit_s": 60.0, "memory_bytes": 256 << 20}
    _asked(child, number=1, limits=limits, prompt=True, tools=[], given=[[QUESTION]])
    assert child.stdout is not None and child.stdin is not None
    assert json.loads(child.stdout.readline())["tokens"]
    child.stdin.close()
    assert child.wait(60) == 0


def test_a_process_that_was_killed_is_started_again(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, limits=RenderLimits())
    before = tokenizer.render([QUESTION])
    for one in _children():
        os.kill(one, signal.SIGKILL)
    wait_until(lambda: not _children(), "its end")
    assert tokenizer.render([QUESTION]) == before


def _children() -> list[int]:
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):  # it may end meanwhile
            if (
                b"rlax_plugin.base.tokens.template_process"
                in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                found.append(int(pid))
    return found
