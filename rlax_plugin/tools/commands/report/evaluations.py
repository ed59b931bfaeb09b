"""Reads held-out evaluations from ``evaluation/*.json``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.identity import changes_results
from rlax_plugin.data.prompts.record import recorded_digests
from rlax_plugin.run.evaluation.measures import is_score, label
from rlax_plugin.run.evaluation.result import recorded
from rlax_plugin.run.evaluation.statistics import Estimate, bootstrap_interval
from rlax_plugin.run.metrics import names

SOLVED = "problems solved"
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of one evaluation.

    Attributes:
      moment: "before", "after", or the file's name.
      held_out: name of the set.
      measure: name such as "pass_at_1" or "length_mean".
      version: weight version; equals the training step that produced it.
      overrides: key=value settings that differ from the run's; if there are any, the figure is not
        comparable.
    """

    moment: str
    held_out: str
    measure: str
    version: int
    estimate: Estimate
    overrides: tuple[str, ...] = ()

    @property
    def solved(self) -> bool:
        """True if it is a share of solved problems."""
        return is_score(self.measure)

    @property
    def label(self) -> str:
        """The measure's name for display, such as "pass@1" or "length mean"."""
        return label(self.measure)

    @property
    def family(self) -> str:
        """The axis that it shares with others: ``SOLVED``, or its unit."""
        row = names.find(f"evaluation/{self.measure}")
        return SOLVED if self.solved or row is None else row.unit


def read_evaluations(files: RunFiles) -> tuple[Measured, ...]:
    """Returns every estimate with an interval, ordered by set, measure and version.

    Raises:
      RlaxError: a file is damaged.
    """
    found = []
    for name in files.names("evaluation"):
        if not name.endswith(".json"):
            continue
        document = files.get_json(f"evaluation/{name}") or {}
        try:
            found += [
                Measured(
                    name.removesuffix(".json"),
                    held_out,
                    measure,
                    document["version"],
                    Estimate.from_json(value),
                    tuple(filter(changes_results, document.get("overrides", ()))),
                )
                for held_out, measures in document["sets"].items()
                for measure, value in measures.items()
            ]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise RlaxError(f"evaluation/{name} is damaged: {error!r}") from error
    return tuple(sorted(found, key=lambda m: (m.held_out, m.measure, m.version)))


@dataclass(frozen=True, slots=True)
class Answered:
    """The problems of one set, and how often the weights after training solved each of them.

    Attributes:
      problems: hash of the prompts and their tokens; only sets with an equal one are compared.
      shares: for each problem the share of its samples that passed.
    """

    problems: str
    shares: tuple[float, ...]

    def change_to(self, other: Answered) -> str:
        """Returns the difference of pass@1 with its 95 % interval, paired by problem."""
        if self.problems != other.problems or len(self.shares) != len(other.shares):
            return "other prompts or another tokenizer"
        difference_b = np.subtract(other.shares, self.shares)
        low, high = bootstrap_interval(difference_b, resamples=_RESAMPLES, seed=0)
        mean = 100 * float(difference_b.mean())
        return f"{mean:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


def read_answered(files: RunFiles) -> dict[str, Answered]:
    """Returns the sets of the evaluation after training; nothing if a run lacks the records.

    Raises:
      RlaxError: a file is damaged.
    """
    try:
        if (after := recorded(files, "after")) is None:
            return {}
        prompts = recorded_digests(files)
        return {
            name: Answered(
                prompts[name], tuple(passed / after.sets[name]["pass_at_1"].n for passed in counts)
            )
            for name, counts in after.passed.items()
            if name in prompts and counts and "pass_at_1" in after.sets[name]
        }
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise RlaxError(f"evaluation/after.json is damaged: {error!r}") from error


def set_apart(found: Iterable[Measured]) -> tuple[tuple[Measured, ...], list[str]]:
    """Returns figures of the run's own settings, and a sentence on each evaluation of others."""
    found = tuple(found)
    others: dict[str, list[Measured]] = {}
    for one in found:
        if one.overrides:
            others.setdefault(one.moment, []).append(one)
    sentences = []
    for moment, measured in others.items():
        figures = ", ".join(
            f"{m.label} {m.estimate.value:.3f} on {m.held_out}" for m in measured if m.solved
        )
        sentences.append(
            f"evaluation/{moment}.json was measured with {' '.join(measured[0].overrides)} and is "
            f"on no curve: version {measured[0].version}, {figures}"
        )
    return tuple(one for one in found if not one.overrides), sentences
