"""The process that measures: ``python -m rlax_plugin.tools.commands.numerics.measuring_process``.

It gets one line of JSON on standard input, see ``inside.answer_once``. The parent makes and removes
the directory, and ends this process when it takes too long.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rlax_plugin.base.processes.inside import Lines, answer_once
from rlax_plugin.config.loading import of_process
from rlax_plugin.tools.commands.numerics.gaps import cells
from rlax_plugin.tools.commands.numerics.measuring import measure, measured_config


def _run(asked: dict[str, Any], lines: Lines) -> None:
    directory = Path(asked["directory"])
    config = measured_config(of_process(asked), directory)
    found = measure(config, directory, lambda what: lines.say({"next": what}))
    table = [dataclasses.astuple(cell) for gaps in found.gaps for cell in cells(gaps)]
    told = {name: getattr(found, name) for name in ("tolerance", "moved", "temperature", "refused")}
    lines.say({"table": table, **told})


if __name__ == "__main__":
    answer_once(_run)
