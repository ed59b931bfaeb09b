"""Compiles the programs of one part in a process of its own, with a deadline."""

from __future__ import annotations

from collections.abc import Callable

from rlax_plugin.base.processes.asked import Limit, answers_of
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.compiling import CompiledProgram

DEADLINE = "--compile-s"
_MODULE = "rlax_plugin.tools.commands.compile.compiling_process"

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
    lines = answers_of(
        module,
        {**config.to_process(), "kind": kind, "topology": topology},
        f"importing the {kind.replace('_', ' ')} for {topology}",
        Limit(deadline_s, DEADLINE),
        progress,
        lambda name: f"compiling {name} for {topology}",
    )
    return [CompiledProgram(**line["program"]) for line in lines]
