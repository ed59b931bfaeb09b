"""The process that compiles: ``python -m rlax_plugin.tools.commands.compile.compiling_process``.

It gets one line of JSON on standard input, which stays open as long as its parent lives, and
writes lines of JSON: the program that it compiles next, each compiled program, and finally success
or the reason for the failure. The parent ends it when its time is over.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from dataclasses import replace
from typing import Any

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.processes.inside import Lines
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import resolved
from rlax_plugin.ports.compiling import CompileTarget
from rlax_plugin.ports.kinds import BY_NAME
from rlax_plugin.ports.protocols import BuildContext


def _leave_with(lines: Lines) -> None:
    while lines.next():  # until the parent has ended, however it did
        pass
    os._exit(1)


def _run(asked: dict[str, Any], lines: Lines) -> dict[str, Any]:
    try:
        arguments = frozenset(asked["arguments"])
        config = resolved(asked["content"], arguments=arguments, source=asked["source"])
        config = replace(config, functions=asked["functions"])
        section, kind = config.section, asked["kind"]
        (key,) = BY_NAME[kind].config_keys
        choice = section.trainer if kind == "trainer" else section.rollouts.engine
        target = CompileTarget(asked["topology"], lambda name: lines.say({"next": name}))
        context = BuildContext.outside_run(section, config)
        programs = registry_for(section).compiled(kind, choice, key, context, target)
        if programs is None:
            reason = f"compiles no programs: its plug-in has no compile function for a {kind}"
            return {"key": key, "value": choice.name, "reason": reason.replace("_", " ")}
        for program in programs:
            lines.say({"program": dataclasses.asdict(program)})
    except ConfigError as error:
        return {"key": error.key, "value": error.value, "reason": error.reason}
    except (RlaxError, OSError) as error:
        return {"error": str(error)}
    return {"done": True}


def main() -> None:
    lines = Lines()
    asked = json.loads(lines.next())
    threading.Thread(target=_leave_with, args=(lines,), daemon=True).start()
    lines.say(_run(asked, lines))
    sys.stdout.flush()
    os._exit(0)  # threads of libraries may wait for nothing


if __name__ == "__main__":
    main()
