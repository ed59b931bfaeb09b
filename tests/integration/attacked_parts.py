"""Plug-in of runs that are attacked: a reward with a sandbox, and what tells workers apart.

Each worker writes what tells its process from others, which no other process but the trainer may
know, into a file named after its process id, in the directory that the environment names.
"""

import os
from pathlib import Path

from rlax_plugin.api import Extension, NoOptions, Prompt, Reward, Sandbox, hookimpl

DIRECTORY = "RLAX_TEST_PROCESSES"


def tell() -> None:
    if "serve" in Path("/proc/self/cmdline").read_text().split("\0"):
        from rlax_plugin.rollout.worker.member import PROCESS

        (Path(os.environ[DIRECTORY]) / str(os.getpid())).write_text(PROCESS)


class Boxed(Reward):
    """Always 0; keeps a sandbox, whose processes live as long as this one."""

    def __init__(self) -> None:
        self._sandbox = Sandbox(allow_weak=True)

    def __call__(self, prompt: Prompt, completion: str) -> float:
        self._sandbox.start()
        return 0.0


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {"boxed": Extension(NoOptions, lambda options, context: Boxed())}


tell()
