"""A worker behind proxies: one before the controller that it calls, one before itself."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos.network import ThreadedProxy, threaded

_PROGRAM = str(Path(__file__).with_name("proxied_worker.py"))


class FarWorker:
    """A worker process that calls, and is called, through proxies only.

    Attributes:
      calling: before the controller.
      called: before the worker, whose own address it has once the worker listens.
      process: the worker; it is killed at the end of the block.
    """

    def __init__(self, calling: ThreadedProxy, called: ThreadedProxy, own: Path):
        self.calling, self.called = calling, called
        self.process: subprocess.Popen[bytes]
        self._own = own

    def listens(self) -> bool:
        """True once it listens; from then on, calls reach it."""
        if self._own.exists() and (address := self._own.read_text()):
            self.called.call(lambda proxy: setattr(proxy, "target", address))
            return True
        return False


@contextmanager
def far_worker(directory: Path, controller: str, token_file: Path) -> Iterator[FarWorker]:
    """Starts a worker named ``far`` with its output in ``far.log``.

    Args:
      controller: its address, to which only the proxy connects.
    """
    with ExitStack() as stack:
        calling = stack.enter_context(threaded(controller))
        called = stack.enter_context(threaded("127.0.0.1:1"))
        far = FarWorker(calling, called, directory / "far.address")
        serve = ("serve", "--controller", calling.address, "--token-file", str(token_file))
        command = [sys.executable, _PROGRAM, called.address, str(directory / "far.address")]
        with (directory / "far.log").open("w") as out:
            far.process = subprocess.Popen(
                [*command, *serve, "--name", "far"], cwd=directory, stdout=out, stderr=out
            )
        try:
            yield far
        finally:
            far.process.kill()
            far.process.wait(60)
