"""``make chaos``: trains a config while its processes are killed and frozen, and judges the end.

``make chaos ARGS='configs/demo.yml steps=20 --seed 1 --kills 4'`` runs this module in a checkout,
with ``tests`` in PYTHONPATH. For each seed it trains a new run, named ``chaos-SEED``. A seed
decides which processes (trainer, workers, reward processes, and with ``--parameter-server`` that
server) get SIGKILL or SIGSTOP, and at which events: in a commit, in a publication, in a snapshot,
at a restore, between turns, in an evaluation. A trainer or a separate parameter server that a
signal has ended is started again, as a supervisor would; workers and reward processes are the run's
own to restart. ``--fault`` lets the network and the weight store fail as well (see ``faults``).

A run has survived if it is complete, ``rlax audit`` finds nothing, no process is left over or has
ended in a way that no blow explains, and with ``rlax.deterministic`` the weights are those of an
undisturbed run, which is trained first, bit for bit. The exit status is 0 if all runs have
survived, 1 if one has not or no blow of it was reached, 2 if the config or an option is wrong, and
130 after Ctrl-C. Each failure comes with the command that repeats it: a seed chooses the same blows
again, though not the same nanosecond. The runs stay for a look at them; remove them before the same
seed is run again.
"""

import argparse
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from chaos.blows import (
    AT_A_RESTORE,
    AT_ONCE,
    EVENTS,
    OF_TESTING,
    STEP_ENDED,
    Blow,
    EventLog,
    Fault,
    blows,
)
from chaos.prepare import Prepared, Settings, check, prepared, targets
from chaos.supervised import SupervisedRun
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.faults import FaultPoint
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import resolve
from rlax_plugin.run.start.signals import Signals
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

SHOWS_NOTHING = "no blow was reached: the run shows nothing; give it more steps"

_BAD_CONFIG = 2  # exit status of ``rlax train``
_INTERRUPTED = 130
_LAST = 2000  # characters of the trainer's output in a finding
_LOOK_S = 0.02
_PATIENCE_S = 60.0  # for the event of a blow, and for the next step
_THERE_S = 30.0  # for a process that is started again to be there
_WITHIN_S = 600.0  # for a run to end after its last blow


@dataclass(slots=True)
class Fallen:
    """A blow and what became of it.

    Attributes:
      who: the process that was hit; "": its event did not come, or nothing was there.
      recovered_s: seconds from the blow to the end of the next step; None: there was none.
    """

    blow: Blow
    who: str = ""
    recovered_s: float | None = None

    def __str__(self) -> str:
        if not self.who:
            return f"{self.blow} ({self.blow.moment}): not reached"
        after = "no step" if self.recovered_s is None else f"a step {self.recovered_s:.1f} s"
        return f"{self.blow} ({self.blow.moment}): {self.who}, {after} later"


@dataclass(slots=True)
class Verdict:
    """The verdict on one seed.

    Attributes:
      findings: all that is wrong; empty: the run has survived.
      restarts: name of a part -> how often the supervisor has started it again.
    """

    seed: int
    fallen: list[Fallen] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def __str__(self) -> str:
        reached = [fallen for fallen in self.fallen if fallen.who]
        slowest_s = max((fallen.recovered_s or 0.0 for fallen in reached), default=0.0)
        moments = ", ".join(dict.fromkeys(fallen.blow.moment for fallen in reached)) or "none"
        restarts = ", ".join(f"{name} {count}" for name, count in self.restarts.items())
        return "\n  ".join(
            [
                f"seed {self.seed}: {'FAILED' if self.findings else 'survived'} in "
                f"{self.wall_s:.0f} s; {len(reached)} of {len(self.fallen)} blows fell "
                f"({moments}); the next step ended at most {slowest_s:.1f} s after one; started "
                f"again by the supervisor: {restarts}",
                *self.findings,
            ]
        )


def main(words: Sequence[str]) -> int:
    """Runs the config once for each seed, prints each verdict, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="make chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--seeds", type=int, default=1, help="runs, with consecutive seeds")
    parser.add_argument("--kills", type=int, default=8, help="blows of a run")
    parser.add_argument("--parameter-server", action="store_true", help="run one as a process")
    parser.add_argument("--fault", action="append", choices=get_args(Fault), default=[])
    parser.add_argument("--out", type=Path, help="folder for the output of the processes")
    choices = parser.parse_intermixed_args(words)
    settings = Settings(
        config=choices.config,
        overrides=tuple(choices.overrides),
        kills=choices.kills,
        own_server=choices.parameter_server,
        faults=tuple(dict.fromkeys(choices.fault)),
        out=choices.out or Path(tempfile.mkdtemp(prefix="rlax-chaos-")),
    )
    try:
        seeds = range(choices.seed, choices.seed + choices.seeds)
        survived = 0
        for verdict in _verdicts(settings, seeds):
            survived += not verdict.findings
            print(verdict, flush=True)
            if verdict.findings:
                again = shlex.join([*words, "--seed", str(verdict.seed), "--seeds", "1"])
                print(f"  remove the runs chaos-* of this seed; then  make chaos ARGS={again!r}")
    except RlaxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(f"{survived} of {len(seeds)} runs have survived; their output is in {settings.out}")
    return int(survived < len(seeds))


def _verdicts(settings: Settings, seeds: Sequence[int]) -> Iterator[Verdict]:
    section = resolve(settings.config, settings.overrides).section
    moments, expected = events_of(section), None
    calm = f"chaos-undisturbed-{seeds[0]}" if section.deterministic else ""
    for name in (*(f"chaos-{seed}" for seed in seeds), *filter(None, [calm])):
        check(settings, name)
    with Signals() as signals:
        if calm:
            expected = _undisturbed(settings, calm, signals)
        for seed in seeds:
            planned = blows(seed, settings.kills, targets(settings), moments)
            yield _disturbed(settings, seed, planned, expected, signals)


def _undisturbed(settings: Settings, name: str, signals: Signals) -> dict[int, str]:
    with prepared(replace(settings, faults=()), name) as made:
        try:
            made.run.start()
            status = made.run.wait(_WITHIN_S)
        finally:
            _close(made, signals)
    if status == 0 and made.run.crashes:
        raise RlaxError(f"in the undisturbed run {made.run.crashes[0]}")
    if status != 0:
        output = made.run.log.read_text(errors="replace")[-_LAST:]
        raise RlaxError(f"the undisturbed run failed with status {status}: {output}")
    return {version: min(found) for version, found in digests(made.files).items()}


def events_of(section: RlaxSection) -> dict[str, list[FaultPoint]]:
    """Returns the moments that runs of the config have, with the events that stand for them."""
    absent = set[str]()
    if not section.several_turns:
        absent.add("between turns")
    if not section.curation.screening.pilots:
        absent.add("between pilots and the rest")
    if not (section.evaluation.every and section.evaluation.problems):
        absent.add("in an evaluation")
    unannounced = () if section.trainer.plain_name == "bigram" else OF_TESTING
    moments = {
        moment: [point for point in points if point not in unannounced]
        for moment, points in EVENTS.items()
        if moment not in absent
    }
    return {moment: points for moment, points in moments.items() if points}


def _disturbed(
    settings: Settings,
    seed: int,
    planned: Sequence[Blow],
    expected: dict[int, str] | None,
    signals: Signals,
) -> Verdict:
    verdict, began_s = Verdict(seed), time.monotonic()
    with prepared(settings, f"chaos-{seed}") as made:
        run, files = made.run, made.files
        status: int | None = None
        left_over: list[str] = []
        try:
            run.start()
            log = EventLog(run.events)
            for blow in planned:
                if run.status is not None and run.status >= 0:
                    verdict.fallen.append(Fallen(blow))  # nothing more can be reached
                    continue
                verdict.fallen.append(_strike(made, log, blow))
                print(f"  seed {seed}: {verdict.fallen[-1]}", flush=True)
            status = run.wait(_WITHIN_S)
        finally:
            left_over = _close(made, signals)
    verdict.restarts, verdict.wall_s = run.restarts, time.monotonic() - began_s
    output = run.log.read_text(errors="replace")
    if status == _BAD_CONFIG and STEP_ENDED not in EventLog(run.events).take():
        raise RlaxError(f"the run cannot be started: {output[-_LAST:]}")
    if status is None:
        left_over = []  # all is left of a run that has not ended in time
    verdict.findings = examine(files, status, output, left_over, expected) + run.crashes
    if not (verdict.findings or any(fallen.who for fallen in verdict.fallen)):
        verdict.findings.append(SHOWS_NOTHING)
    return verdict


def _close(made: Prepared, signals: Signals) -> list[str]:
    """See ``SupervisedRun.close``; a second Ctrl-C must not leave processes behind."""
    signals.ending = True
    try:
        return made.run.close(made.end_s)
    finally:
        signals.ending = False


def _strike(made: Prepared, log: EventLog, blow: Blow) -> Fallen:
    """Waits for the event of a blow, lets it fall, and waits until the run has recovered."""
    fallen, run = Fallen(blow), made.run

    def goes_on() -> bool:
        run.go_on()
        return run.status is None

    log.take()
    if blow.event in AT_A_RESTORE:  # which only a killed trainer has
        if not log.wait(STEP_ENDED, 1, _WITHIN_S, goes_on):
            return fallen  # it has nothing to restore yet
        if not any([run.strike(mark, signal.SIGKILL) for mark in run.living("trainer")]):
            return fallen
        log.take()
    if not log.wait(blow.event, blow.times, _PATIENCE_S, goes_on):
        return fallen
    began_s = time.monotonic()
    if blow.target in made.troubles:
        fallen.who = _fault(made, blow, goes_on)
    else:
        fallen.who = _hit(run, blow, goes_on)
    log.take()
    if fallen.who and log.wait(STEP_ENDED, 1, _PATIENCE_S, goes_on):
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
    return who


def _hit(run: SupervisedRun, blow: Blow, goes_on: Callable[[], bool]) -> str:
    """Kills or freezes a process; returns it in words, or "" if there is none."""
    until_s = time.monotonic() + _THERE_S
    while not (living := run.living(blow.target)) and goes_on() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if not living:
        return ""
    mark = living[min(int(blow.choice * len(living)), len(living) - 1)]
    if not run.strike(mark, signal.SIGSTOP if blow.kind == "freeze" else signal.SIGKILL):
        return ""
    if blow.kind == "freeze":
        try:
            time.sleep(blow.for_s)
        finally:
            run.strike(mark, signal.SIGCONT)
    return mark.who


def examine(
    files: RunFiles,
    status: int | None,
    output: str,
    left_over: Sequence[str],
    expected: dict[int, str] | None,
) -> list[str]:
    """Returns all that is wrong with a run that has ended.

    Args:
      status: exit status of the trainer; None: it did not end in time.
      output: of the trainer's processes.
      left_over: processes that have outlived the run.
      expected: version -> digest of an undisturbed run; None: the run is not deterministic.
    """
    findings = [f"a process was left over: {process}" for process in left_over]
    if status != 0:
        how = "did not end in time" if status is None else f"ended with status {status}"
        return [*findings, f"the run {how}: {output[-_LAST:]}"]
    try:
        if not json.loads(files.get("summary.json")).get("complete"):
            findings.append("the summary says that the run is not complete")
        report = audit(files)
        if report.violation is not None:
            findings.append(f"the audit found {report.violation}")
        if expected is not None:
            findings += _different(digests(files), expected)
    except (RlaxError, FileNotFoundError, ValueError) as error:
        findings.append(f"the records cannot be read: {error}")
    return findings


def digests(files: RunFiles) -> dict[int, set[str]]:
    """Returns version -> every digest with which it was published."""
    of_versions: dict[int, set[str]] = {}
    for segment, _ in journal.read(files):
        for event in segment.events:
            if isinstance(event, ev.Published):
                of_versions.setdefault(event.version, set()).add(event.digest)
    return of_versions


def _different(published: dict[int, set[str]], expected: dict[int, str]) -> list[str]:
    for version in sorted(published.keys() | expected.keys()):
        if published.get(version) != {expected.get(version)}:
            return [
                f"version {version} has the digests {sorted(published.get(version, ()))}, and in "
                f"an undisturbed run {expected.get(version)}"
            ]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
