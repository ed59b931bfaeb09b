"""Errors, each naming the boundary it crossed. Imports only endings and how messages look."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.text.secrets import shown_value


class RlaxError(Exception):
    """Base of every error that rlax_plugin raises on purpose.

    Attributes:
      ending: the ending of a sample whose reward or environment it comes from; None: it failed.
    """

    ending: Ending | None = None


_LONGEST_VALUE = 500  # characters of a message; a value of a config may be much longer


class ConfigError(RlaxError):
    """A bad value in the configuration, found before a device is touched.

    Args:
      key: dotted key, e.g. ``rlax.staleness.max_staleness``.
      value: the given value; ``None`` if nothing was given.
      reason: one sentence saying what would be right.
      others: further lines of the message, such as other problems of the same config.
    """

    def __init__(self, key: str, value: object, reason: str, others: Iterable[str] = ()):
        self.key, self.value, self.reason, self.others = key, value, reason, tuple(others)
        said = one_line(repr(shown_value(key, value)), _LONGEST_VALUE)
        shown = "" if value is None else f" = {said}"
        super().__init__("\n".join([f"{key}{shown}: {reason}", *self.others]))

    def followed_by(self, others: Iterable[str]) -> ConfigError:
        """Returns the same error with further lines."""
        return ConfigError(self.key, self.value, self.reason, others)


class UnknownKeyError(ConfigError):
    """A key that does not exist.

    Args:
      key: the dotted key.
      value: the given value.
      known: names of the keys beside it.
      others: further lines of the message.
    """

    def __init__(self, key: str, value: object, known: Iterable[str], others: Iterable[str] = ()):
        self.known = tuple(known)
        reason = f"unknown key; {alternatives(key.rpartition('.')[2], self.known)}"
        super().__init__(key, value, reason, others)

    def followed_by(self, others: Iterable[str]) -> UnknownKeyError:
        return UnknownKeyError(self.key, self.value, self.known, others)


class PluginError(RlaxError):
    """A plug-in cannot be loaded, breaks the hook contract, or collides with another."""


class WorkerError(RlaxError):
    """A rollout worker failed, disappeared, or sent an invalid answer."""


class WeightsError(RlaxError):
    """A weight version is damaged or not the announced one, or a request for it was rejected.

    From ``WeightStore.load`` exactly this class means that bytes were read and are wrong: a
    checksum or the decoding failed, or they belong to another model. A worker that sees it three
    times in a row is quarantined.
    """


class WeightsUnreadableError(WeightsError):
    """A weight version could not be read, which says nothing about the bytes or the reader.

    The disk or the network failed, perhaps for a while, or the version was deleted meanwhile.
    Reading is retried until ``rlax.deadlines.weights_s``.
    """


class WeightsUnwritableError(WeightsError):
    """A weight version could not be written because the disk or the network failed.

    Writing is retried until ``rlax.deadlines.weights_s``.
    """


class WeightsMismatchError(WeightsError):
    """The loaded weights are not those that the trainer published.

    The fingerprint on the device or the canary's log-probs differ. Retrying would mean trusting a
    machine that has just been found to be wrong.
    """


class BacklogError(RlaxError):
    """More work was submitted to a background worker than may wait there."""


class DeadlineError(RlaxError):
    """Something took longer than its deadline.

    Args:
      what: description of what took too long.
      seconds: the deadline.
      key: dotted config key that sets the deadline.
      needed_s: an estimate of a sufficient value for the key; None if there is none.
    """

    def __init__(self, what: str, seconds: float, key: str, needed_s: float | None = None):
        self.what, self.seconds, self.key, self.needed_s = what, seconds, key, needed_s
        advice = f" (set {key} to wait longer)"
        if needed_s is not None:
            about = in_seconds(needed_s)
            advice = (
                f": it would have needed about {about} (set {key} to more than that)"
                if needed_s > seconds
                else f", although about {about} were expected: something may be stuck, or {key} "
                "must be raised"
            )
        super().__init__(f"{what} took longer than {seconds:g} s{advice}")


class CommandError(RlaxError):
    """A command of ``rlax`` that was started from Python failed.

    Args:
      command: the command's name, such as ``train``.
      status: its exit status; negative if a signal ended it.
      reason: its own error message.
    """

    def __init__(self, command: str, status: int, reason: str):
        self.command, self.status, self.reason = command, status, reason
        super().__init__(f"rlax {command} failed: {reason}")


class TrainingError(RlaxError):
    """The training loop or the data path into it failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement of a kind of part that a plug-in's part does not meet.

    Attributes:
      where: plug-in, hook and name of the part.
      expected: requirement of its kind.
      found: behaviour observed instead.
      mend: the change that would fix it.
    """

    where: str
    expected: str
    found: str
    mend: str

    def __str__(self) -> str:
        return (
            f"{self.where}\n  expected: {self.expected}\n  found: {self.found}\n"
            f"  to fix: {self.mend}"
        )


class ContractError(RlaxError):
    """Parts break the contract of their kind.

    Args:
      findings: all broken requirements.
    """

    def __init__(self, findings: Iterable[Finding]):
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


def alternatives(given: str, known: Iterable[str]) -> str:
    """Returns a hint for a wrong name: the nearest match, without case, then all known names."""
    names = sorted(known)
    folded = {name.casefold(): name for name in reversed(names)}
    near = difflib.get_close_matches(given.casefold(), folded, n=1, cutoff=0.5)
    hint = f"did you mean {folded[near[0]]!r}? " if near else ""
    return f"{hint}known: {', '.join(names) if names else 'none'}"
