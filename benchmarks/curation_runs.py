"""The runs of ``curation.py``: the options of each method, and the shared warm start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from curation_figures import Cost, crossing, curve, measured_cost
from curation_task import PARTS, Sizes, write
from rich.console import Console

from rlax_plugin.pass_rates.files import read_table

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "demo.yml"
DEADLINE_S = 3600
SIZES = Sizes(
    train={"trivial": 860, "learnable": 340, "hopeless": 750},
    held_out={"trivial": 130, "learnable": 512, "hopeless": 128},
    warm_up=1800,
)
WARM = (0.35, 0.45)  # pass@1 of learnable problems at which the warm start ends
SAMPLES = 8  # of a prompt, in a group and in the measurement
GROUPS = 64  # in a batch without a filter, of which about MIXED have rewards that differ
MIXED = 16  # in a batch with a filter
LEARNING_RATE = 1.5e-4
HALF_LIFE = 128  # versions; fitted to a run of uniform, no half-life is too long
STEPS = 160
EVERY = 20  # steps between evaluations
TARGETS = (0.40, 0.41, 0.42, 0.43)
HELD_OUT = "learnable"


@dataclass(frozen=True)
class Method:
    """One way to choose prompts.

    Attributes:
      title: title in the table.
      options: options of ``rlax train``.
      groups: number of groups in a batch.
      measured: True if prompts are chosen by pass rates that were measured before the run.
    """

    title: str
    options: tuple[str, ...]
    groups: int = MIXED
    measured: bool = False


def _method(title: str, sampler: str, *more: str, **other: Any) -> Method:
    options = (f"rlax.curation.sampler={sampler}", *more)
    return Method(title, options, **other)


_FILTER = "rlax.curation.filters=[{name: mixed_outcome}]"
# With 4 of 4 pilots alike and no other samples, 4 more differ with probability 4/9.
_SCREENING = "rlax.curation.screening={pilots: 4, min_mixed_probability: 0.5}"
_POWER = "{name: learnability, exponent: 4, candidates: 16}"
_PRIOR = "rlax.curation.prior_samples=0.5"  # most prompts always or never pass
METHODS = {
    "uniform": _method("uniform", "{name: shuffled}", "rlax.curation.filters=[]", groups=GROUPS),
    "small": _method("uniform, small batch", "{name: shuffled}", "rlax.curation.filters=[]"),
    "mixed": _method("mixed outcomes (DAPO)", "{name: shuffled}", _FILTER),
    "learnability": _method("p (1 - p)", "{name: learnability}", _FILTER),
    "power": _method("(p (1 - p))^4", _POWER, _FILTER, _PRIOR),
    "greso": _method("GRESO", "{name: greso}", _FILTER),
    "screening": _method(
        "two-phase screening",
        "{name: shuffled}",
        _FILTER,
        _SCREENING,
    ),
    "both": _method("(p (1 - p))^4 and screening", _POWER, _FILTER, _PRIOR, _SCREENING),
    "offline": _method("offline, measured once", "{name: shuffled}", _FILTER, measured=True),
}


@dataclass(frozen=True)
class Trial:
    """One run of the benchmark."""

    method: str
    seed: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"


@dataclass(frozen=True)
class Place:
    """The benchmark's directory: prompts, warm start, measurement, and one directory per run."""

    directory: Path

    @property
    def prompts(self) -> Path:
        return self.directory / "prompts"

    @property
    def rates(self) -> Path:
        return self.directory / "rates.parquet"

    @property
    def kept(self) -> Path:
        return self.directory / "kept.parquet"

    @property
    def warm_start(self) -> Path:
        return self.directory / "warm" / "prepared" / "warm_start"

    def options(self, train: str, name: str) -> list[str]:
        """Returns the options of every command: files of prompts, and the run's directory."""
        files = {"train": train, "validation": "warm_validation"} | {part: part for part in PARTS}
        found = {split: str(self.prompts / f"{file}.jsonl") for split, file in files.items()}
        source = {"name": "jsonl", "chat": False, "splits": found}
        return [
            f"base_output_directory={self.directory}",
            f"run_name={name}",
            f"rlax.prompt_source={json.dumps(source)}",
            "rlax.trackers=[]",
            "rlax.deadlines.startup_s=900",  # on a busy machine
        ]

    def prepare(self) -> None:
        """Makes the prompts, the warm start and the measured pass rates if they do not exist."""
        console = Console()
        if not self.prompts.exists():
            write(unfinished := self.directory / "prompts.unfinished", SIZES)
            unfinished.rename(self.prompts)
        if not (self.directory / "warm" / "summary.json").exists():
            console.print("the warm start that all runs share")
            warm = {"enabled": True, "learning_rate": 1e-3, "train_problems": 0}
            warm |= {"pass_at_1_from": WARM[0], "pass_at_1_to": WARM[1]}
            rlax(
                "train",
                CONFIG,
                *self.options("warm_train", "warm"),
                "rlax.prompt_source.duplicates=keep",
                "rlax.launcher.workers=1",
                "steps=1",
                "rlax.evaluation.problems=0",
                f"rlax.trainer.warm_start={json.dumps(warm)}",
            )
        if not self.rates.exists():
            console.print("pass rates of all prompts after the warm start")
            rlax(
                "eval",
                CONFIG,
                *self.options("train", "measure"),
                self._started(),
                "--split",
                "train",
                "--samples",
                str(SAMPLES),
                "--out",
                self.rates,
            )
        if not self.kept.exists():
            rlax(
                "curate", self.rates, "--keep", "0.1..0.9", "--drop-unmeasured", "--out", self.kept
            )

    def train(self, trial: Trial) -> None:
        """Runs or continues one trial."""
        rlax("train", CONFIG, *self.arguments(trial))

    def arguments(self, trial: Trial) -> list[str]:
        """Returns the arguments of ``rlax train`` for a trial."""
        method = METHODS[trial.method]
        sets = {part: {"split": part, "samples": 2} for part in PARTS if part != HELD_OUT}
        options = [
            *self.options("train", trial.name),
            self._started(),
            f"steps={trial.steps}",
            "checkpoint_period=25",
            f"per_device_batch_size={method.groups * SAMPLES}",
            f"learning_rate={LEARNING_RATE}",
            "learning_rate_final_fraction=1.0",  # so that a run can get more steps later
            f"rlax.seed={trial.seed}",
            f"rlax.rollouts.group_size={SAMPLES}",
            f"rlax.rollouts.groups_per_step={method.groups}",
            "rlax.curation.max_refill=1000",  # few groups are mixed in the end
            "rlax.curation.guard={warn: 0, stop: 0}",
            f"rlax.curation.pass_rate_half_life={HALF_LIFE}",
            f"rlax.evaluation.split={HELD_OUT}",
            "rlax.evaluation.samples=4",
            "rlax.evaluation.k=[1]",
            f"rlax.evaluation.every={EVERY}",
            f"rlax.evaluation.sets={json.dumps(sets)}",
            *method.options,
        ]
        if method.measured:
            options.append(f"rlax.curation.only={self.kept}")
        return options

    def is_finished(self, trial: Trial) -> bool:
        """True if the trial has all its steps, or more, and was evaluated after them."""
        summary = self._summary(trial)
        evaluated = summary.get("pass_at_1_after") is not None
        return evaluated and summary["steps"] >= trial.steps

    def result(self, trial: Trial, targets: Sequence[float]) -> dict[str, Any]:
        """Returns the figures of a finished run."""
        run, summary = self.directory / trial.name, self._summary(trial)
        before = measured_cost(read_table(str(self.rates)))
        points = curve(run, before if METHODS[trial.method].measured else Cost())
        reached = {f"{target:g}": crossing(points, HELD_OUT, target) for target in targets}
        return {
            "method": trial.method,
            "seed": trial.seed,
            "steps": summary["steps"],
            "wall_s": round(summary["wall_s"], 1),
            "to_target": {target: cost and asdict(cost) for target, cost in reached.items()},
            "curve": [asdict(one.cost) | one.pass_at_1 for one in points],
        }

    def _summary(self, trial: Trial) -> dict[str, Any]:
        path = self.directory / trial.name / "summary.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def _started(self) -> str:
        return f"rlax.trainer.warm_start.directory={self.warm_start}"


def rlax(*words: str | Path) -> None:
    """Runs a command; its output is discarded unless it fails.

    Raises:
      RuntimeError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "rlax_plugin", *map(str, words)],
        cwd=ROOT,  # the config names the tokenizer from here
        env=os.environ | {"TERM": "dumb"},
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"rlax {words[0]} ended with {done.returncode}: {done.stderr[-4000:]}")
