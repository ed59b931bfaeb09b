"""Shows the figures of compiled programs, and the verdict."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.text.amounts import in_bytes, in_seconds
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.ports.compiling import CompiledProgram

_NAME = re.compile(r"(?P<kind>[a-z0-9]+)-(?P<size>[1-9]\d*)")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of chip, as one device of JAX sees it.

    Attributes:
      kind: the first part of the name of a slice.
      hbm_bytes: memory that programs may use; the compiler of libtpu 0.0.52 states it when a
        program needs more.
      cores_per_device: the number in the name of a slice counts cores; v4 and v5p have two in one
        device.
      host: name of the slice that is one host.
    """

    kind: str
    hbm_bytes: int
    cores_per_device: int
    host: str


CHIPS = {
    chip.kind: chip
    for chip in (
        Chip("v4", int(30.75 * _GIB), 2, "v4-8"),
        Chip("v5e", int(15.75 * _GIB), 1, "v5e-4"),
        Chip("v5p", int(95.73 * _GIB), 2, "v5p-8"),
        Chip("v6e", int(31.24 * _GIB), 1, "v6e-4"),
        # Of TPU7x a chip is two devices, each with half of its memory.
        Chip("tpu7x", int(94.74 * _GIB), 1, "tpu7x-8"),
    )
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of chips of one kind.

    Attributes:
      name: for example ``v5e-16``.
      chip: its kind.
      devices: number of devices of JAX in it.
    """

    name: str
    chip: Chip
    devices: int

    @classmethod
    def parse(cls, option: str, name: str) -> Slice:
        """Reads the name of a slice, such as ``v5e-16``.

        The plug-in that compiles knows which sizes exist.

        Args:
          option: the option that has this value, for messages.

        Raises:
          ConfigError: it names no kind of chip and size.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            reason = "must be a kind of chip and a number, such as v5e-16"
            raise ConfigError(option, name, reason)
        chip = CHIPS.get(found["kind"])
        if chip is None:
            reason = f"names an unknown kind of chip; {alternatives(found['kind'], CHIPS)}"
            raise ConfigError(option, name, reason)
        size = int(found["size"])
        if size % chip.cores_per_device:
            reason = f"must be even, as the number counts cores, of which a {chip.kind} chip has 2"
            raise ConfigError(option, name, reason)
        return cls(name, chip, size // chip.cores_per_device)

    def one_host(self) -> Slice:
        """Returns one host of the same kind of chips, or this slice if it is smaller."""
        host = Slice.parse("", self.chip.host)
        return host if host.devices < self.devices else self


@dataclass(frozen=True, slots=True)
class CompiledPart:
    """The programs of one part, compiled for a slice.

    Attributes:
      part: ``trainer`` or ``worker``.
      slice: the chips.
      programs: in the order in which they were compiled.
    """

    part: str
    slice: Slice
    programs: Sequence[CompiledProgram]

    def fits(self, program: CompiledProgram) -> bool:
        """True if a program compiled, and it and what is held beside it fit into the memory."""
        return not program.rejected and program.total_bytes <= self.slice.chip.hbm_bytes

    @property
    def all_fit(self) -> bool:
        return all(self.fits(program) for program in self.programs)


def document(parts: Sequence[CompiledPart]) -> dict[str, Any]:
    """Returns everything that is printed, as JSON."""
    return {
        "parts": [
            {
                "part": one.part,
                "topology": one.slice.name,
                "devices": one.slice.devices,
                "hbm_bytes": one.slice.chip.hbm_bytes,
                "programs": [
                    dataclasses.asdict(program)
                    | {"total_bytes": program.total_bytes, "fits": one.fits(program)}
                    for program in one.programs
                ],
            }
            for one in parts
        ],
        "verdict": verdict(parts),
    }


def show_part(console: Console, one: CompiledPart) -> None:
    """Prints the table of a part."""
    console.print()
    chip = one.slice.chip
    heading = (
        f"Programs of the {one.part} on {one.slice.name}: {one.slice.devices} chips with "
        f"{in_bytes(chip.hbm_bytes)} each"
    )
    console.print(Text(heading, "bold"))
    console.print(_table(one))
    for program in one.programs:
        if program.rejected:
            note = f"  {program.name} is rejected: {one_line(program.rejected)}"
            console.print(Text(note), soft_wrap=True)


def show_verdict(console: Console, parts: Sequence[CompiledPart]) -> None:
    """Prints the verdict."""
    console.print()
    style = "green" if all(part.all_fit for part in parts) else "red"
    console.print(Text(verdict(parts), style), soft_wrap=True)


def verdict(parts: Sequence[CompiledPart]) -> str:
    """Returns one sentence: whether all programs compile and fit."""
    wrong = [_reason(one, program) for one in parts for program in one.programs]
    if wrong := [reason for reason in wrong if reason]:
        return f"Not ready: {'; '.join(wrong)}."
    names = [f"{program.name} ({one.slice.name})" for one in parts for program in one.programs]
    return f"All programs compile and fit: {', '.join(names)}."


def _reason(one: CompiledPart, program: CompiledProgram) -> str:
    if program.rejected:
        message = program.rejected.rstrip(".")
        return f"the compiler rejects {program.name} for {one.slice.name}: {message}"
    if not one.fits(program):
        return (
            f"{program.name} needs {in_bytes(program.total_bytes)} per chip of {one.slice.name}, "
            f"which has {in_bytes(one.slice.chip.hbm_bytes)}"
        )
    return ""


def _table(one: CompiledPart) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=True)
    table.add_column("  per chip", no_wrap=True)
    for program in one.programs:
        table.add_column(program.name, justify="right")
    compiled = [program for program in one.programs if not program.rejected]
    kinds = list(dict.fromkeys(kind for program in compiled for kind in program.memory))
    purposes = list(dict.fromkeys(what for program in compiled for what in program.beside))
    collectives = sorted({kind for program in compiled for kind in program.collectives})

    def row(title: str, cells: Sequence[str], style: str = "") -> None:
        table.add_row(Text(f"  {title}", style), *(Text(cell, style) for cell in cells))

    programs = one.programs
    row("one call", [program.work for program in programs])
    for kind in kinds:
        row(kind, [in_bytes(p.memory[kind]) if kind in p.memory else "-" for p in programs])
    for what in purposes:
        row(what, ["-" if p.rejected else in_bytes(p.beside.get(what, 0)) for p in programs])
    row("in all", ["-" if p.rejected else in_bytes(p.total_bytes) for p in programs], "bold")
    row("fits", ["yes" if one.fits(p) else "no" for p in programs], "bold")
    row("floating-point operations", ["-" if p.rejected else f"{p.flops:.3g}" for p in programs])
    for kind in collectives:
        row(kind, [f"{p.collectives[kind]:,}" if kind in p.collectives else "-" for p in programs])
    row("compiled in", [in_seconds(p.seconds) for p in programs])
    return table
