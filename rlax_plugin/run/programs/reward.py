"""The program of a reward process: ``python -m rlax_plugin.run.programs.reward SOCKET WITNESS``."""

from __future__ import annotations

from rlax_plugin.build import build_part
from rlax_plugin.reward.process import main

if __name__ == "__main__":
    main(build_part)
