"""The process that compiles: ``python -m rlax_plugin.tools.commands.compile.compiling_process``.

It gets one line of JSON on standard input, which stays open as long as its parent lives, and
writes lines of JSON: the program that it compiles next, each compiled program, and finally success
or the reason for the failure. The parent ends it when its time is over.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.processes.inside import Lines, answer_once
from rlax_plugin.build import registry_for
from rlax_plugin.config.loading import of_process
from rlax_plugin.ports.compiling import CompileTarget
from rlax_plugin.ports.kinds import BY_NAME
from rlax_plugin.ports.protocols import BuildContext


def _run(asked: dict[str, Any], lines: Lines) -> None:
    config = of_process(asked)
    section, kind = config.section, asked["kind"]
    (key,) = BY_NAME[kind].config_keys
    choice = section.trainer if kind == "trainer" else section.rollouts.engine
    target = CompileTarget(asked["topology"], lambda name: lines.say({"next": name}))
    context = BuildContext.outside_run(section, config)
    programs = registry_for(section).compiled(kind, choice, key, context, target)
    if programs is None:
        reason = f"compiles no programs: its plug-in has no compile function for a {kind}"
        raise ConfigError(key, choice.name, reason.replace("_", " "))
    for program in programs:
        lines.say({"program": dataclasses.asdict(program)})


if __name__ == "__main__":
    answer_once(_run)
