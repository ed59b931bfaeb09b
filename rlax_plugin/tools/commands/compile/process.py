"""Compiles the programs of one part in a process of its own, with a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from rlax_plugin.base.errors import ConfigError, DeadlineError, RlaxError
from rlax_plugin.base.processes.asked import AskedProcess, EndedError, with_this_path
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.compiling import CompiledProgram

DEADLINE = "--compile-s"
_MODULE = "rlax_plugin.tools.commands.compile.compiling_process"
_END_S = 5.0
_TELL_S = 1.0  # between two reports of the time that compiling has taken

Progress = Callable[[str, int], None]


def compile_part(
    config: ResolvedConfig,
    kind: str,
    topology: str,
    deadline_s: float,
    progress: Progress,
    *,
    module: str = _MODULE,
) -> list[CompiledProgram]:
    """Compiles the programs of a trainer or a rollout engine.

    Args:
      kind: ``trainer`` or ``rollout_engine``.
      topology: name of the slice.
      deadline_s: seconds for all of its programs together.
      progress: is called every second with what is compiled, and for how many seconds.
      module: the process's module; tests replace it.

    Raises:
      ConfigError: the config does not suit the slice, or the compiler is not installed.
      DeadlineError: it took longer; the process is then ended.
      RlaxError: the process failed, for example because memory ran out.
    """
    process = AskedProcess(
        module,
        environment=with_this_path(),
        keeps_log=True,
        leads_session=True,  # a Ctrl-C is for this process to handle
    )
    what, programs = f"importing the {kind.replace('_', ' ')}", []
    began_s = since_s = time.monotonic()
    try:
        process.send(_asked(config, kind, topology))
        while True:
            now_s = time.monotonic()
            left_s = deadline_s - (now_s - began_s)
            if left_s <= 0:
                raise DeadlineError(f"{what} for {topology}", deadline_s, DEADLINE)
            progress(f"{what} for {topology}, seconds:", int(now_s - since_s))
            try:
                line = json.loads(process.receive(min(_TELL_S, left_s)))
            except TimeoutError:
                continue
            if "next" in line:
                what, since_s = f"compiling {one_line(str(line['next']), 64)}", time.monotonic()
            elif "program" in line:
                programs.append(CompiledProgram(**line["program"]))
            elif "reason" in line:
                raise ConfigError(line["key"], line["value"], line["reason"])
            elif "error" in line:
                raise RlaxError(f"{what} for {topology} failed: {line['error']}")
            else:
                return programs
    except EndedError:  # its log says why
        ending = process.ending(_END_S)
        raise RlaxError(
            f"{what} for {topology}: the process ended with status {ending.status}: "
            f"{ending.said or 'it said nothing'}"
        ) from None
    finally:
        process.close()


def _asked(config: ResolvedConfig, kind: str, topology: str) -> bytes:
    asked = {
        "content": config.content,
        "arguments": sorted(config.arguments),
        "source": config.source,
        "functions": dict(config.functions),
        "kind": kind,
        "topology": topology,
    }
    return json.dumps(asked, default=str).encode() + b"\n"
