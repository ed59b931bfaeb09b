"""Stands for the process that compiles: it answers as its request says."""

import os
import sys
import time
from pathlib import Path

from rlax_plugin.base.processes.inside import Lines


def main() -> None:
    lines = Lines()
    lines.next()
    how = os.environ["FAKE_COMPILER"]
    lines.say({"next": "train step"})
    if how == "hangs":
        Path(os.environ["FAKE_PID"]).write_text(str(os.getpid()))
        time.sleep(600)
    if how == "ends":
        print("importing", file=sys.stderr)
        print("MemoryError: no memory is left", file=sys.stderr, flush=True)
        os._exit(3)
    if how == "rejects":
        lines.say({"key": "rlax.rollouts.slots", "value": 3, "reason": "must be a multiple of 4"})
        return
    program = {
        "name": "train step",
        "work": "16 rows x 2,048 tokens",
        "seconds": 40.0,
        "memory": {"arguments": 6, "outputs": 5, "temporaries": 4, "aliased": 5, "code": 1},
        "beside": {"copy that is being published": 2},
        "flops": 1e14,
        "collectives": {"all-gather": 529},
    }
    lines.say({"program": program})
    lines.say({"done": True})


if __name__ == "__main__":
    main()
