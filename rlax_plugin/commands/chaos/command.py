"""``rlax chaos``, from the command line: one run for each seed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from rlax_plugin.commands.chaos.blows import (
    AT_A_RESTORE,
    AT_ONCE,
    EVENTS,
    OF_TESTING,
    STEP_ENDED,
    Blow,
    blows,
)
from rlax_plugin.commands.chaos.event_log import EventLog
from rlax_plugin.commands.chaos.prepare import Prepared, Settings, check, prepared, targets
from rlax_plugin.commands.chaos.supervised import SupervisedRun
from rlax_plugin.commands.chaos.verdict import (
    SHOWS_NOTHING,
    Fallen,
    Verdict,
    digests,
    examine,
)
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import resolve
from rlax_plugin.errors import RlaxError
from rlax_plugin.records.faults import FaultPoint
from rlax_plugin.start.signals import Signals
from rlax_plugin.text.command_lines import pasteable
from rlax_plugin.text.terminal import HarmlessConsole

_LOOK_S = 0.02
_BAD_CONFIG = 2  # exit status of ``rlax train``
_THERE_S = 30.0  # for a process that is started again to be there


def chaos(settings: Settings, seeds: Sequence[int], *, as_json: bool) -> bool:
    """Runs the config once for each seed, and prints each verdict.

    Returns:
      True if all runs have survived.

    Raises:
      RlaxError: the config is wrong, or the undisturbed run fails.
    """
    console = HarmlessConsole(highlight=False, soft_wrap=True, stderr=as_json)
    section = resolve(settings.config, settings.overrides).section
    events, expected = _events(settings, section), None
    calm = f"chaos-undisturbed-{seeds[0]}" if section.deterministic else ""
    for name in (*(f"chaos-{seed}" for seed in seeds), *filter(None, [calm])):
        check(settings, name)
    console.print(f"the output of all processes is written to {settings.out}")
    verdicts = []
    try:
        with Signals() as signals:
            if calm:
                console.print("an undisturbed run, to compare with")
                expected = _undisturbed(settings, calm, signals)
            for seed in seeds:
                planned = blows(seed, settings.kills, targets(settings), events)
                verdict = _one(settings, seed, planned, expected, console, signals)
                verdicts.append(verdict)
                _print(console, settings, verdict, calm)
    finally:
        if as_json:
            print(json.dumps([one.to_json() for one in verdicts], indent=2))
    survived = sum(not one.findings for one in verdicts)
    console.print(f"{survived} of {len(verdicts)} runs have survived")
    return survived == len(verdicts)


def _undisturbed(settings: Settings, name: str, signals: Signals) -> dict[int, str]:
    with prepared(replace(settings, faults=(), ray_nodes=0), name) as made:
        try:
            made.run.start()
            status = made.run.wait(settings.within_s)
        finally:
            _close(made, signals)
    if status == 0 and made.run.crashes:
        raise RlaxError(f"in the undisturbed run {made.run.crashes[0]}")
    if status != 0:
        said = made.run.log.read_text(errors="replace")[-2000:]
        raise RlaxError(f"the undisturbed run failed with status {status}: {said}")
    return {version: min(found) for version, found in digests(made.files).items()}


def _events(settings: Settings, section: RlaxSection) -> dict[str, list[FaultPoint]]:
    """Returns the moments that runs of the config have, with the events that stand for them."""
    absent = set[str]()
    if not settings.trainer:
        absent.add("at a restore")
    if not section.several_turns:
        absent.add("between turns")
    if not section.curation.screening.pilots:
        absent.add("between pilots and the rest")
    if not (section.evaluation.every and section.evaluation.problems):
        absent.add("in an evaluation")
    unknown = () if section.trainer.plain_name == "bigram" else OF_TESTING
    known = {
        moment: [point for point in points if point not in unknown]
        for moment, points in EVENTS.items()
        if moment not in absent
    }
    return {moment: points for moment, points in known.items() if points}


def _one(
    settings: Settings,
    seed: int,
    planned: Sequence[Blow],
    expected: dict[int, str] | None,
    console: Console,
    signals: Signals,
) -> Verdict:
    verdict, began_s = Verdict(seed), time.monotonic()
    with prepared(settings, f"chaos-{seed}") as made:
        run, files = made.run, made.files
        status: int | None = None
        left: list[str] = []
        try:
            run.start()
            log = EventLog(run.events)
            for blow in planned:
                if run.status is not None and run.status >= 0 and not run.excused:
                    verdict.fallen.append(Fallen(blow))  # nothing more can be reached
                    continue
                verdict.fallen.append(_strike(made, log, blow, settings))
                console.print(f"  seed {seed}: {verdict.fallen[-1]}")
            status = run.wait(settings.within_s)
        finally:
            left = _close(made, signals)
    verdict.restarts, verdict.wall_s = run.restarts, time.monotonic() - began_s
    output = run.log.read_text(errors="replace")
    if status == _BAD_CONFIG and STEP_ENDED not in EventLog(run.events).take():
        raise RlaxError(f"the run cannot be started: {output[-2000:]}")
    left = left if status is not None else []  # all is left of a run that has not ended in time
    verdict.findings = examine(files, status, output, left, expected) + run.crashes
    verdict.explained = run.explained
    if not (verdict.findings or any(one.reached for one in verdict.fallen)):
        verdict.findings.append(SHOWS_NOTHING)
    return verdict


def _close(made: Prepared, signals: Signals) -> list[str]:
    """See ``SupervisedRun.close``; a second Ctrl-C must not leave processes behind."""
    signals.ending = True
    try:
        return made.run.close(made.end_s)
    finally:
        signals.ending = False


def _strike(made: Prepared, log: EventLog, blow: Blow, settings: Settings) -> Fallen:
    """Waits for the event of a blow, lets it fall, and waits until the run has recovered."""
    fallen, run, patience_s = Fallen(blow), made.run, settings.patience_s

    def goes_on() -> bool:
        run.go_on()
        return run.status is None

    log.take()
    if blow.event in AT_A_RESTORE:  # which only a killed trainer has
        if not log.wait(STEP_ENDED, 1, settings.within_s, goes_on):
            return fallen  # it has nothing to restore yet
        if not any([run.strike(one, signal.SIGKILL) for one in run.living("trainer")]):
            return fallen
        log.take()
    if not log.wait(blow.event, blow.times, patience_s, goes_on):
        return fallen
    began_s = time.monotonic()
    if blow.target in made.troubles:
        fallen.who = _fault(made, blow, goes_on)
    else:
        fallen.who = _hit(run, blow, goes_on)
    fallen.reached = bool(fallen.who)
    if not fallen.reached:
        return fallen
    log.take()
    if log.wait(STEP_ENDED, 1, patience_s, goes_on):
        fallen.recovered_s = time.monotonic() - began_s
    return fallen


def _fault(made: Prepared, blow: Blow, goes_on: Callable[[], bool]) -> str:
    """Lets a fault last; returns in words what it hit, or "" if nothing was there to hit."""
    trouble, until_s = made.troubles[blow.target], time.monotonic() + _THERE_S
    try:
        while not (who := trouble.begin(blow)) and goes_on() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        if who and blow.kind not in AT_ONCE:
            time.sleep(blow.for_s)
    finally:
        trouble.end()
    if blow.target == "disk":
        made.run.excused.append("disk")  # the trainer may end, and is to say why
    return who


def _hit(run: SupervisedRun, blow: Blow, goes_on: Callable[[], bool]) -> str:
    """Kills or freezes a process; returns it in words, or "" if there is none."""
    until_s = time.monotonic() + _THERE_S
    while not (found := run.living(blow.target)) and goes_on() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if not found:
        return ""
    mark = found[min(int(blow.choice * len(found)), len(found) - 1)]
    if not run.strike(mark, signal.SIGSTOP if blow.kind == "freeze" else signal.SIGKILL):
        return ""
    if blow.kind == "freeze":
        try:
            time.sleep(blow.for_s)
        finally:
            run.strike(mark, signal.SIGCONT)
    return mark.who


def _print(console: Console, settings: Settings, verdict: Verdict, calm: str) -> None:
    reached = [one for one in verdict.fallen if one.reached]
    slowest = max((one.recovered_s or 0.0 for one in reached), default=0.0)
    moments = ", ".join(dict.fromkeys(one.blow.moment for one in reached)) or "none"
    restarts = ", ".join(f"{name} {count}" for name, count in verdict.restarts.items())
    how = "survived" if not verdict.findings else "FAILED"
    how = "shows nothing" if verdict.findings == [SHOWS_NOTHING] else how
    console.print(
        f"seed {verdict.seed}: {how} in {verdict.wall_s:.0f} s; {len(reached)} of "
        f"{len(verdict.fallen)} blows fell ({moments}); the next step ended at most "
        f"{slowest:.1f} s after one; started again by the supervisor: {restarts}"
    )
    for sentence in verdict.explained:
        console.print(f"  a fault ended the trainer, which said: {sentence}")
    for finding in verdict.findings:
        console.print(f"  {finding}")
    if verdict.findings:
        again = ("chaos", settings.config, *settings.overrides, "--seed", str(verdict.seed))
        again += ("--kills", str(settings.kills))
        again += ("--parameter-server",) if settings.own_server else ()
        again += () if settings.trainer else ("--spare-trainer",)
        again += tuple(word for fault in settings.faults for word in ("--fault", fault))
        again += ("--hosts", str(settings.hosts)) if settings.hosts > 1 else ()
        again += ("--ray-nodes", str(settings.ray_nodes)) if settings.ray_nodes else ()
        again += (
            "--patience-s",
            f"{settings.patience_s:g}",
            "--within-s",
            f"{settings.within_s:g}",
        )
        command = pasteable("rlax", *again)
        runs = f"chaos-{verdict.seed}" + (f" and {calm}" if calm else "")
        console.print(f"  output: {settings.out}/chaos-{verdict.seed}")
        console.print(f"  remove {runs} and repeat it with:  {command}")
