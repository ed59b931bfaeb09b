"""The result of an evaluation, and its file ``evaluation/<name>.json`` in the run's directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.evaluation.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The measures of one weight version.

    Attributes:
      version: the version that generated all samples.
      sets: name -> measure -> estimate, see ``measures.measures``; the main set comes first.
      failures: set -> reason of one of its failed rewards; only sets that have any.
      passed: set -> number of samples of each problem that passed.
    """

    version: int
    sets: Mapping[str, Mapping[str, Estimate]]
    failures: Mapping[str, str] = field(default_factory=dict)
    passed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def main(self) -> Mapping[str, Estimate]:
        """The measures of the main set."""
        return next(iter(self.sets.values()))

    @property
    def pass_at(self) -> dict[str, Estimate]:
        """pass@k of the main set, by the name of the measure."""
        return {name: e for name, e in self.main.items() if name.startswith("pass_at_")}

    def metrics(self) -> dict[str, float]:
        """Returns ``evaluation/<measure>`` of the main set and ``evaluation_<set>/<measure>``."""
        found = {"evaluation/version": float(self.version)}
        for index, (name, measures) in enumerate(self.sets.items()):
            stage = f"evaluation_{name}" if index else "evaluation"
            found |= {f"{stage}/{measure}": e.value for measure, e in measures.items()}
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "step": self.version,  # the update of a step makes the version of its number
            **{name: e.to_json() for name, e in self.pass_at.items()},
            "sets": self.sets_to_json(),
            **({"reward_failures": dict(self.failures)} if self.failures else {}),
        }

    def sets_to_json(self) -> dict[str, Any]:
        return {
            name: {measure: e.to_json() for measure, e in measures.items()}
            for name, measures in self.sets.items()
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Evaluated:
        return cls(
            document["version"],
            {
                name: {measure: Estimate.from_json(e) for measure, e in measures.items()}
                for name, measures in document["sets"].items()
            },
            document.get("reward_failures", {}),
            {name: tuple(counts) for name, counts in document.get("passed", {}).items()},
        )


def step_name(step: int) -> str:
    """Returns the name of the evaluation during training after a step."""
    return f"step-{step:08d}"


def steps_evaluated(files: RunFiles) -> list[int]:
    """Returns the steps after which an evaluation during training has ended."""
    names = (name.removesuffix(".json") for name in files.names("evaluation"))
    return [int(name.removeprefix("step-")) for name in names if name.startswith("step-")]


def record(files: RunFiles, name: str, found: Evaluated) -> None:
    """Writes ``evaluation/<name>.json``."""
    document = found.to_json()
    if found.passed:
        document["passed"] = {held_out: list(counts) for held_out, counts in found.passed.items()}
    files.put_json(f"evaluation/{name}.json", document)
    reached(FaultPoint.EVALUATION_WRITTEN)


def recorded(files: RunFiles, name: str, version: int | None = None) -> Evaluated | None:
    """Reads the result that ``record`` wrote (for that version); None if there is none."""
    document = files.get_json(f"evaluation/{name}.json")
    if document is None or version not in (None, document["version"]):
        return None
    return Evaluated.from_json(document)
