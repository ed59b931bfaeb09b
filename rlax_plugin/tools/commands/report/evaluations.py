"""Reads held-out evaluations from ``evaluation/*.json``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config.identity import changes_results
from rlax_plugin.run.evaluation.measures import is_score, label
from rlax_plugin.run.evaluation.statistics import Estimate
from rlax_plugin.run.metrics import names

SOLVED = "problems solved"


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
