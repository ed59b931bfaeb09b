"""A process that holds a sandbox, as a reward process would, for any user: JSON lines in and out.

``Driver`` is the test's side. With ``SECRET`` in its environment and in a file it is what tested
code would like to read and to harm.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from rlax_plugin.base.endings import Ending
from rlax_plugin.reward.sandbox.code_limits import MIB, Limits
from rlax_plugin.reward.sandbox.layers import Offer, offered
from rlax_plugin.reward.sandbox.sandbox import Ended, Sandbox, SandboxError

HERE = Path(__file__)
REPOSITORY = HERE.parents[4]
SECRET = "the-secret-of-the-run"
# Small ones: what goes wrong here must not hurt the machine.
LIMITS = Limits(wall_s=30.0, cpu_s=4, memory_bytes=256 * MIB, processes=16)


class Driver:
    """A process of ``main`` below."""

    def __init__(self, user: str):
        command = [sys.executable, str(HERE)]
        if user == "ordinary" and os.geteuid() == 0:
            command = [sys.executable, str(REPOSITORY / "tests/helpers/ordinary_user.py"), *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SECRET": SECRET, "PYTHONPATH": str(REPOSITORY)},
        )
        self.pid, self.user = self._process.pid, user

    def ask(self, **message: Any) -> dict[str, Any]:
        self._tell(message)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def begin(self, source: str) -> None:
        """Runs a piece of code, and does not wait for it."""
        self._tell({"source": source, "stdin": "", "limits": {}, "lacks": []})

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()

    def processes(self) -> list[psutil.Process]:
        """Of its sandbox: the one that waits outside, and the server."""
        return psutil.Process(self.pid).children(recursive=True)

    def run(self, source: str, stdin: str = "", lacks: Sequence[str] = (), **limits: Any) -> Ended:
        """Runs a piece of code in the driver's sandbox.

        Args:
          lacks: layers that its machine is said not to have.
          limits: other ones than ``LIMITS``.

        Raises:
          SandboxError: it was ended from outside, or could not be run.
        """
        said = self.ask(source=source, stdin=stdin, limits=limits, lacks=lacks)
        if "failed" in said:
            raise SandboxError(said["failed"], Ending(said["ending"]))
        stdout, stderr = (said.pop(name).encode() for name in ("stdout", "stderr"))
        return Ended(**said, stdout=stdout, stderr=stderr)

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _sandbox(limits: Limits, lacks: Sequence[str]) -> Sandbox:
    """One of a machine that lacks some layers, which is made up: they are there."""
    if not lacks:
        return Sandbox(limits)
    offer = offered()
    having = {name: how for name, how in offer.having.items() if name not in lacks}
    fewer = Offer(having, dict.fromkeys(lacks, "left out by a test"))
    with patch("rlax_plugin.reward.sandbox.sandbox.offered", return_value=fewer):
        return Sandbox(limits, allow_weak=True)


def main() -> None:
    boxes: dict[str, Sandbox] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "offered" in asked:
            answer = asdict(offered())
        else:
            key = json.dumps([asked["limits"], asked["lacks"]])
            if key not in boxes:
                for box in boxes.values():
                    box.close()
                boxes.clear()
                limits = Limits(**(asdict(LIMITS) | asked["limits"]))
                boxes[key] = _sandbox(limits, asked["lacks"])
            try:
                ended = boxes[key].run(asked["source"], asked["stdin"].encode())
            except SandboxError as error:
                answer = {"failed": str(error), "ending": error.ending}
            else:
                answer = asdict(ended) | {
                    name: getattr(ended, name).decode(errors="replace")
                    for name in ("stdout", "stderr")
                }
        print(json.dumps(answer), flush=True)
    for box in boxes.values():
        box.close()


if __name__ == "__main__":
    main()
