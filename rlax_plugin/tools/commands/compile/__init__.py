"""``rlax check --compile``: compiles a run's programs for a slice of TPUs, without TPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from rich.console import Console

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.processes.asked import Limit, answers_of
from rlax_plugin.base.text.terminal import counting
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.compiling import CompiledProgram
from rlax_plugin.tools.commands.compile.show import (
    CompiledPart,
    Slice,
    document,
    show_part,
    show_verdict,
)

__all__ = ["Wanted", "compile_run", "document"]

_COMPILER = "libtpu"
_KINDS = {"trainer": "trainer", "worker": "rollout_engine"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command.

    Attributes:
      trainer: slice of the trainer.
      worker: slice of one worker.
      deadline_s: seconds for the programs of each of the two.
    """

    trainer: Slice
    worker: Slice
    deadline_s: float

    @classmethod
    def of(cls, trainer: str, worker: str | None, deadline_s: float) -> Wanted:
        """Reads the options; a worker's slice is one host of the trainer's chips by default.

        Raises:
          ConfigError: an option is wrong, or the compiler is not installed.
        """
        chips = Slice.parse("--compile", trainer)
        own = chips.one_host() if worker is None else Slice.parse("--compile-worker", worker)
        if deadline_s <= 0:
            raise ConfigError(DEADLINE, deadline_s, "must be above 0")
        if find_spec(_COMPILER) is None:
            reason = (
                f"needs the compiler for TPUs, {_COMPILER}, which is not installed: "
                "pip install 'rlax-plugin[tpu]'"
            )
            raise ConfigError("--compile", trainer, reason)
        return cls(chips, own, deadline_s)


def compile_run(
    config: ResolvedConfig, wanted: Wanted, errors: Console, out: Console | None
) -> list[CompiledPart]:
    """Compiles the programs of the trainer and of a worker.

    Args:
      errors: if it is a terminal, it shows what is compiled, and for how many seconds.
      out: gets the table of each part as soon as it is there, and the verdict; None: nothing.

    Raises:
      ConfigError: the config does not suit the slices.
      DeadlineError: compiling took too long.
      RlaxError: the process that compiles failed.
    """
    parts = []
    for part, chips in (("trainer", wanted.trainer), ("worker", wanted.worker)):
        with counting(errors) as progress:
            kind = _KINDS[part]
            found = compile_part(config, kind, chips.name, wanted.deadline_s, progress)
        parts.append(CompiledPart(part, chips, found))
        if out is not None:
            show_part(out, parts[-1])
    if out is not None:
        show_verdict(out, parts)
    return parts


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
