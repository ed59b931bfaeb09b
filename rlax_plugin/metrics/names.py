"""The one table of metrics: every name that a step can report, its unit and its meaning.

Names are ``stage/name``. A part in angle brackets stands for any text without a slash:
``objective/<name>`` is any metric that a plug-in's slot reports.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rlax_plugin.metrics.machine_rows import MACHINE_ROWS
from rlax_plugin.metrics.measure_rows import EVALUATED, MEASURES
from rlax_plugin.metrics.objective_rows import OBJECTIVE_ROWS, Row
from rlax_plugin.metrics.rollout_rows import ROLLOUT_ROWS

_GAP = "steps with such tokens"
_IN_STEP = "steps in which groups were scored"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
      name: ``stage/name``; a pattern if it contains ``<...>``.
      unit: unit of the value.
      meaning: the quantity that is measured, and over which samples, groups or steps.
      when: steps in which it is reported.
    """

    name: str
    unit: str
    meaning: str
    when: str

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name

    def matches(self, name: str) -> bool:
        """True if ``name`` is this metric, or matches its pattern."""
        return _regex(self.name).fullmatch(name) is not None


@functools.cache
def _regex(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, re.split(r"<[^>]+>", name))))


@dataclass(frozen=True, slots=True)
class Stage:
    """The metrics of a stage, whose names begin with its name.

    Attributes:
      name: name of the stage; a pattern if there may be several.
      text: a description that applies to all of them.
      when: steps in which they are reported, unless a row says otherwise.
      rows: (name, unit, meaning), or (name, unit, meaning, when).
    """

    name: str
    text: str
    when: str
    rows: tuple[Row, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(
            Metric(f"{self.name}/{row[0]}", row[1], row[2], row[3] if len(row) > 3 else self.when)
            for row in self.rows
        )


STAGES: tuple[Stage, ...] = (
    Stage(
        "reward",
        "Computed over all groups scored since the last step, including groups that were rejected "
        "or dropped.",
        "every step",
        (
            ("mean", "reward", "mean over samples whose reward did not fail", _IN_STEP),
            (
                "errors",
                "samples",
                "number of samples whose reward raised an error, took too long or ended its "
                "process",
            ),
            (
                "processes_replaced",
                "processes",
                "number of reward processes replaced because they exited, crashed or exceeded "
                "`rlax.deadlines.reward_s`",
            ),
        ),
    ),
    Stage(
        "reward_part",
        "The values of the single rewards, without their weights, if `rlax.rewards` lists several "
        "or a weight; the reward of a sample is their weighted sum. They are computed over the "
        "same samples as `reward/mean`.",
        f"{_IN_STEP}, with several rewards or a weight",
        (
            (
                "<reward>",
                "reward",
                "mean of the reward of this name; if a name is listed twice, an index is appended",
            ),
        ),
    ),
    Stage(
        "reward_metric",
        "What rewards and environments report besides the reward, under names of their own; if "
        "several report the same name for a sample, the values are added. At most 32 names are "
        "reported in a step, the most frequent first.",
        f"{_IN_STEP}, if a reward reports any",
        (("<name>", "the reward's", "mean over the samples that have this metric"),),
    ),
    Stage(
        "curation",
        "Counts of groups since the last step.",
        "every step",
        (
            ("groups_issued", "groups", "number of groups requested from workers"),
            ("groups_scored", "groups", "number of groups generated and scored"),
            ("groups_rejected", "groups", "number of groups rejected by a filter or screened out"),
            ("groups_screened", "groups", "number of groups rejected by their first samples"),
            (
                "groups_dropped",
                "groups",
                "number of groups that were discarded: accepted ones because they were too stale, "
                "or because their worker was quarantined, and cancelled ones without a score",
            ),
            (
                "groups_cancelled",
                "groups",
                "number of groups whose generation was ended because the batches were filled "
                "without them, and they had become too stale for the next one",
            ),
            (
                "stage",
                "stages",
                "number of the stages of `rlax.curation.stages` that are over",
                "if there are stages",
            ),
            (
                "samples_saved",
                "samples",
                "number of samples of cancelled groups that were not generated to their end",
            ),
            (
                "tokens_saved",
                "tokens",
                "estimated number of tokens that these samples would still have taken: for each, "
                "the mean of what longer ones of the last 1024 samples took beyond its length",
            ),
        ),
    ),
    Stage(
        "length",
        "Number of completion tokens per sample. If `trained_mean` stays below `issued_mean`, long "
        "completions are rejected or dropped more often than short ones.",
        "every step",
        (
            ("issued_mean", "tokens", "mean over all samples scored since the last step", _IN_STEP),
            ("issued_max", "tokens", "longest sample scored since the last step", _IN_STEP),
            ("trained_mean", "tokens", "mean over the samples of the batch"),
        ),
    ),
    Stage(
        "episode",
        "Episodes of an [environment](environments.md) that may go on after the first answer. "
        "`turns_mean` and `given_tokens` are of the groups scored since the last step; the others "
        "count how episodes have ended since then, including those of evaluations.",
        "every step, unless `rlax.environment` is `single_turn`",
        (
            ("turns_mean", "turns", "mean number of answers of the policy per episode", _IN_STEP),
            (
                "given_tokens",
                "tokens",
                "number of tokens that the environment gave after the first answers; they never "
                "train",
            ),
            ("done", "episodes", "number of episodes that the environment ended"),
            ("cut", "episodes", "number of episodes that a limit on turns or tokens ended"),
            (
                "errors",
                "episodes",
                "number of episodes whose environment raised an error, took too long or ended its "
                "process; they have no reward",
            ),
            (
                "late",
                "episodes",
                "number of these whose environment took longer than `rlax.deadlines.episode_s`",
            ),
        ),
    ),
    Stage(
        "batch",
        "Contents of the training batch.",
        "every step",
        (
            ("groups", "groups", "number of groups in the batch"),
            ("groups_equal", "fraction", "fraction of them whose samples all have the same reward"),
            ("rows", "rows", "number of rows of the batch, including empty ones"),
            ("tokens", "tokens", "number of tokens in these rows, including prompts"),
            (
                "packing_efficiency",
                "fraction",
                "fraction of the positions of these rows that contain a token",
            ),
        ),
    ),
    Stage(
        "staleness",
        "Staleness of the batch's groups: the number of the weight version that the step makes, "
        "minus the number of the version that generated the group's oldest token. 1 is on-policy: "
        "the step starts from the weights that generated the group.",
        "every step",
        (
            ("max", "versions", "largest staleness of a group"),
            ("mean", "versions", "mean staleness of the groups"),
        ),
    ),
    Stage(
        "machine",
        "Use of the machines by the processes of the run, sampled about once a second; workers "
        "report theirs with each heartbeat. Values of several processes are added up.",
        "the first step after each sample",
        MACHINE_ROWS,
    ),
    Stage("rollout", "Generation by the workers.", "every step", ROLLOUT_ROWS),
    Stage(
        "train",
        "Size of the training step.",
        "every step",
        (
            ("tokens", "tokens", "number of completion tokens in the batch"),
            ("published_bytes", "bytes", "bytes written for the newest version in the store"),
            (
                "sent_bytes",
                "bytes",
                "size of the rows and arrays that host 0 has sent to the trainer's other hosts",
                "every step of a trainer over several hosts",
            ),
        ),
    ),
    Stage(
        "time",
        "Durations in seconds. The trainer waits for a batch, trains and publishes weights, one "
        "after the other. The controller and the workers run in parallel to it.",
        "every step",
        (
            ("step_s", "s", "time from the end of the last step to the end of this one"),
            ("wait_s", "s", "time that the trainer waited for its batch"),
            ("train_s", "s", "time from receiving the batch to the end of the step's last update"),
            ("publish_on_loop_s", "s", "time that publishing weights blocked the trainer"),
            (
                "publish_s",
                "s",
                "time to write the last weight version that is in the store, in parallel to "
                "training; it may be that of an earlier step",
            ),
            ("commit_s", "s", "time to write the batch and its events to disk, beside training"),
            (
                "generate_s",
                "s",
                "time from the earliest issue of a group to the latest end of a generation, of "
                "what happened since the last step",
            ),
            (
                "reward_s",
                "s",
                "mean time to score a group, including the time that it waits for a reward process",
            ),
        ),
    ),
    Stage(
        "objective",
        "Computed in the loss, over the tokens that the step is trained on. A value is a mean over "
        "these tokens, and a fraction is a fraction of them, unless its meaning says otherwise. "
        "[objectives.md](objectives.md) has the formulas: A is the advantage, r is pi_theta / "
        "pi_old, m is pi_old / mu, w is pi_theta / mu, and mu is the behaviour policy, with which "
        "the rollout engine generated the tokens. The trainer `maxtext` reports all metrics of "
        "this section; other trainers may report fewer.",
        "every step",
        OBJECTIVE_ROWS,
    ),
    Stage(
        "schedule",
        "Values of the numbers of the config that have a [schedule](objectives.md#schedules). The "
        "temperature and the weights of rewards are those of groups that are issued for the "
        "weights that the step starts from.",
        "every step",
        (
            (
                "<key>",
                "the key's",
                "value in this step; the key is without `rlax.`, such as `objective.grad_1.high`",
                "if the number has a schedule",
            ),
        ),
    ),
    Stage(
        "logprob_gap",
        "Absolute difference between the log-probs that the trainer and the rollout engine compute "
        "for a token with the same weights. It is computed in the first update of a step, over "
        "tokens of staleness 1. `p95` and `max` are edges of a histogram's bins, at most 1.45 "
        "times too large.",
        "every step",
        (
            ("tokens", "tokens", "number of tokens in the other metrics of this section"),
            ("mean", "nats", "mean difference", _GAP),
            ("p95", "nats", "95th percentile of the difference", _GAP),
            ("max", "nats", "largest difference", _GAP),
        ),
    ),
    Stage(
        "learning",
        "Scalars that MaxText computes, under MaxText's names. Each value is the mean over the "
        "updates of a step.",
        "every step, trainer `maxtext`",
        (
            ("loss", "loss", "total loss, which is minimised"),
            ("lm_loss", "loss", "the objective's part of the loss"),
            ("perplexity", "1", "exp(lm_loss); in RL this is not a perplexity"),
            ("z_loss", "loss", "MaxText's z-loss"),
            ("moe_lb_loss", "loss", "load-balancing loss of a mixture of experts"),
            ("indexer_loss", "loss", "loss of the indexer of sparse attention"),
            ("mtp_loss", "loss", "loss of multi-token prediction"),
            ("total_weights", "1", "divisor of the loss, such as the number of sequences"),
            ("current_learning_rate", "1", "learning rate"),
            ("grad_norm", "norm", "norm of the gradient after clipping by norm"),
            ("raw_grad_norm", "norm", "norm of the gradient before clipping by norm"),
            ("param_norm", "norm", "norm of the parameters"),
            ("<name>", "MaxText's", "any other scalar of MaxText", "depends on MaxText's config"),
        ),
    ),
    Stage(
        "evaluation",
        "Results of the evaluations during training. One evaluation starts every "
        "`rlax.evaluation.every` steps and measures one weight version. Confidence intervals are "
        "in `evaluation/*.json` in the run's directory.",
        EVALUATED,
        (
            (
                "version",
                "version",
                "number of the evaluated weight version, which is the step that produced it",
            ),
            *MEASURES,
        ),
    ),
    Stage(
        "evaluation_<set>",
        "The same measures for a further evaluation set; `<set>` is its name in "
        "`rlax.evaluation.sets`.",
        EVALUATED,
        MEASURES,
    ),
)

METRICS: tuple[Metric, ...] = tuple(metric for stage in STAGES for metric in stage.metrics)


def find(name: str) -> Metric | None:
    """Returns the row of a metric: its own, or the pattern that it matches; None if unknown."""
    rows = (metric for metric in METRICS if metric.matches(name))
    return min(rows, key=lambda metric: metric.is_pattern, default=None)


_INTRODUCTION = """\
# Metrics

<!-- Written by `rlax explain --markdown metrics`; a test compares. -->

Every step reports numbers named `stage/name` to the run's `metrics.jsonl`, its \
[trackers](trackers.md) and Prometheus. This page lists all of them. `rlax explain time/step_s` \
explains one, `rlax explain time` all of a stage, and any other text all metrics whose name or \
meaning contains it. Angle brackets stand for any name.
"""


def markdown() -> str:
    """Returns the text of docs/metrics.md."""
    lines = [_INTRODUCTION]
    for stage in STAGES:
        lines += [f"## `{stage.name}`\n", f"{stage.text}\n"]
        lines += ["| metric | unit | meaning | when |", "| --- | --- | --- | --- |"]
        lines += [f"| `{m.name}` | {m.unit} | {m.meaning} | {m.when} |" for m in stage.metrics]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
