"""``rlax doctor``, from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlax_plugin.base.liveness.marks import Mark
from rlax_plugin.base.text.terminal import HarmlessConsole
from rlax_plugin.tools.commands.doctor.bundle import write_bundle
from rlax_plugin.tools.commands.doctor.evidence import Evidence, Process, gather, last_lines
from rlax_plugin.tools.commands.doctor.findings import Finding, findings
from rlax_plugin.tools.commands.doctor.fleet_findings import recent_losses
from rlax_plugin.tools.commands.doctor.stacks_shown import ask, newest, shortened
from rlax_plugin.tools.commands.status.place import place_of
from rlax_plugin.tools.commands.status.show import lines_of

_STACKS_S = 3.0
_LOG_LINES = 5


def examine(run: str, *, all_stacks: bool = False, bundle: str | None = None) -> bool:
    """Prints what of a run is stuck or slow.

    Args:
      all_stacks: prints the whole stacks of all its processes.
      bundle: file to write all evidence to; None: none.

    Returns:
      True if nothing is wrong.

    Raises:
      RlaxError: there is no such run.
    """
    place = place_of(run)
    evidence = gather(place.files, place.section, place.state_dir)
    if place.problem:
        why = place.problem.splitlines()[0]  # the others name further keys
        unread = f"the config cannot be read, so that deadlines are the defaults: {why}"
        evidence = replace(evidence, damaged=[unread, *evidence.damaged])
    found = findings(evidence)
    wanted = _concerned(evidence, found, everybody=all_stacks or bundle is not None)
    stacks = ask([p.mark for p in wanted if p.lives], _STACKS_S)
    stacks |= {p.mark: newest(p.mark) for p in wanted if not p.lives}
    console = HarmlessConsole(highlight=False)
    for line in lines_of(evidence.seen, evidence.now):
        if line not in (one.what for one in found):
            console.print(line, soft_wrap=True)
    losses = recent_losses(evidence)
    if not found and not losses:
        console.print("nothing is stuck")
    for line in losses:
        console.print(line, soft_wrap=True)
    _print_findings(console, found)
    for process in wanted:
        _print_process(console, process, stacks, whole=all_stacks)
    if not wanted and found and evidence.seen.ended:  # its process has left no mark
        _print_log(console, place.state_dir / "logs" / "trainer.log", "")
    if bundle is not None:
        written = write_bundle(Path(bundle), place.files, place.state_dir, evidence, stacks)
        console.print(f"wrote {written}", soft_wrap=True)
    return not found


def _concerned(evidence: Evidence, found: list[Finding], *, everybody: bool) -> list[Process]:
    if everybody:
        return [one for one in evidence.processes if one.lives or evidence.seen.ended]
    named = [one.process for one in found if one.process is not None]
    return list({process.mark.pid: process for process in named}.values())


def _print_findings(console: Console, found: list[Finding]) -> None:
    for number, one in enumerate(found, 1):
        console.print(f"\n{number}. {one.what}", style="bold", soft_wrap=True)
        if one.ends:
            console.print(f"   ends by: {one.ends}", soft_wrap=True)
        if one.try_:
            console.print(f"   try: {one.try_}", soft_wrap=True)


def _print_process(
    console: Console, process: Process, stacks: dict[Mark, str], *, whole: bool
) -> None:
    mark, text = process.mark, stacks.get(process.mark, "")
    console.print(f"\n{mark.who}:", style="bold")
    lines = text.splitlines() if whole else shortened(text, dict(mark.threads))
    for line in lines or ["no stacks: it has left none"]:
        console.print(f"  {line}", soft_wrap=True)
    _print_log(console, mark.log, "  ")


def _print_log(console: Console, log: Path, indent: str) -> None:
    if lines := last_lines(log, _LOG_LINES):
        console.print(f"{indent}the last lines of {log}:", soft_wrap=True)
        for line in lines:
            console.print(f"{indent}  {line}", soft_wrap=True)
