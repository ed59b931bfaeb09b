"""The one table of metrics: every name that a step can report, its unit and its meaning.

Names are ``stage/name``. A part in angle brackets stands for any text without a slash, so that
``objective/<name>`` is whatever a plug-in's slot reports. Imports the standard library only.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_GAP = "steps with such tokens"
_KL = "if the KL coefficient is above 0"
_PART = "if the objective has this part"
_EVALUATED = "steps in which an evaluation ends"
_IN_STEP = "steps in which groups were scored"
_SCORED = f"{_EVALUATED}, unless every reward failed"

_Row = tuple[str, str, str] | tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
      name: ``stage/name``; with ``<...>`` in it, a pattern.
      unit: of the value.
      meaning: what is measured, and over what.
      when: in which steps it is there.
    """

    name: str
    unit: str
    meaning: str
    when: str

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name

    def matches(self, name: str) -> bool:
        """Whether ``name`` is this metric, or fits its pattern."""
        return _regex(self.name).fullmatch(name) is not None


@functools.cache
def _regex(name: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, re.split(r"<[^>]+>", name))))


@dataclass(frozen=True, slots=True)
class Stage:
    """Metrics whose names begin alike.

    Attributes:
      name: the stage, a pattern where there may be several.
      text: what holds for all of them.
      when: in which steps they are there, unless a row says otherwise.
      rows: (name, unit, meaning), or (name, unit, meaning, when).
    """

    name: str
    text: str
    when: str
    rows: tuple[_Row, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(
            Metric(f"{self.name}/{row[0]}", row[1], row[2], row[3] if len(row) > 3 else self.when)
            for row in self.rows
        )


_MEASURES: tuple[_Row, ...] = (
    ("pass_at_<k>", "fraction", "problems for which at least one of k samples is right"),
    ("majority_at_<k>", "fraction", "problems for which the most frequent of k answers is right"),
    ("reward_mean", "reward", "mean over samples whose reward did not fail", _SCORED),
    ("reward_errors", "fraction", "samples whose reward raised an error or took too long"),
    ("length_mean", "tokens", "mean length of completions"),
    ("length_p95", "tokens", "95th percentile of the length of completions"),
    ("truncated", "fraction", "samples cut at max_new_tokens"),
)

STAGES: tuple[Stage, ...] = (
    Stage(
        "reward",
        "Computed over all groups scored since the last step, including those that did not train.",
        "every step",
        (
            ("mean", "reward", "mean over samples whose reward did not fail", _IN_STEP),
            (
                "errors",
                "samples",
                "samples whose reward raised an error, took too long or ended its process",
            ),
            (
                "processes_replaced",
                "processes",
                "reward processes replaced because they exited, crashed or exceeded `reward_s`",
            ),
        ),
    ),
    Stage(
        "reward_part",
        "The components of the reward, over the same samples, if `rlax.rewards` names several; "
        "the reward is their sum.",
        f"{_IN_STEP}, with several rewards",
        (("<reward>", "reward", "mean of this reward; duplicates get an index suffix"),),
    ),
    Stage(
        "curation",
        "Counts of groups since the last step.",
        "every step",
        (
            ("groups_issued", "groups", "groups requested from workers"),
            ("groups_scored", "groups", "groups generated and scored"),
            ("groups_rejected", "groups", "groups rejected by a filter"),
            (
                "groups_dropped",
                "groups",
                "groups discarded because they were too stale, or because their worker is not "
                "trusted",
            ),
        ),
    ),
    Stage(
        "length",
        "Completion tokens per sample. If `trained_mean` stays below `issued_mean`, long answers "
        "are rejected or dropped more often than short ones.",
        "every step",
        (
            ("issued_mean", "tokens", "mean over all scored samples", _IN_STEP),
            ("trained_mean", "tokens", "mean over the samples of the batch"),
        ),
    ),
    Stage(
        "batch",
        "Contents of the training batch.",
        "every step",
        (
            ("groups", "groups", "groups in the batch"),
            ("rows", "rows", "rows of the batch, including empty ones"),
            ("tokens", "tokens", "tokens in these rows, including prompts"),
            ("packing_efficiency", "fraction", "positions of these rows that contain a token"),
        ),
    ),
    Stage(
        "staleness",
        "Staleness of the batch's groups: the version that the update produces minus the version "
        "of the group's oldest token; 1 is on-policy.",
        "every step",
        (
            ("max", "versions", "largest staleness"),
            ("mean", "versions", "mean staleness over groups"),
        ),
    ),
    Stage(
        "rollout",
        "Generation by the workers.",
        "every step",
        (
            ("tokens", "tokens", "generated tokens of the groups scored since the last step"),
            ("workers", "workers", "workers registered at the end of the step"),
        ),
    ),
    Stage(
        "train",
        "Training.",
        "every step",
        (("tokens", "tokens", "completion tokens in the batch"),),
    ),
    Stage(
        "time",
        "Durations. The trainer waits, trains and publishes in turn; everything else runs in "
        "parallel to it.",
        "every step",
        (
            ("step_s", "s", "time from the end of the last step to the end of this one"),
            ("wait_s", "s", "time that the trainer waits for its batch"),
            ("train_s", "s", "time from receiving the batch to the end of the update"),
            ("publish_on_loop_s", "s", "time that the trainer is blocked by publishing weights"),
            ("publish_s", "s", "time that writing the latest weight version took"),
            ("commit_s", "s", "time to write the batch and its journal to disk"),
            ("generate_s", "s", "time from the first group issued to the last one generated"),
            ("reward_s", "s", "mean time to score a group, including waiting"),
        ),
    ),
    Stage(
        "objective",
        "Computed by the loss over trained tokens; a value is a mean unless its meaning says "
        "otherwise. [objectives.md](objectives.md) has the formulas. A trainer reports what it "
        "computes; `maxtext` computes all of them.",
        "every step",
        (
            ("tokens", "tokens", "number of trained tokens, counted once per epoch"),
            ("sequences", "samples", "number of trained samples, counted once per epoch"),
            ("ratio", "ratio", "probability under the policy over that under the old policy"),
            ("advantage", "reward", "advantage, in the unit that the objective gives it"),
            ("advantage_abs", "reward", "absolute value of the advantage"),
            ("entropy", "nats", "entropy of the policy"),
            ("kl_k1", "nats", "KL of sampler to policy, estimator K1"),
            ("kl_k3", "nats", "KL of sampler to policy, estimator K3"),
            ("chi_squared", "1", "mean of w^2, minus 1; w is the policy over the sampler"),
            ("effective_sample_size", "fraction", "(sum w)^2 / (n sum w^2)"),
            ("perplexity_gap", "fraction", "the trainer's perplexity over the sampler's, minus 1"),
            ("reference_kl_k1", "nats", "KL to the reference policy, estimator K1", _KL),
            ("reference_kl_k3", "nats", "KL to the reference policy, estimator K3", _KL),
            (
                "reprefill_missed",
                "fraction",
                "tokens that use the proximal policy because the weights that generated them are "
                "not available",
                "if old_policy is reprefill",
            ),
            ("clip_fraction_high", "fraction", "tokens with A > 0 and a ratio too high", _PART),
            ("clip_fraction_low", "fraction", "tokens with A < 0 and a ratio too low", _PART),
            ("dual_clip_fraction", "fraction", "tokens with A < 0 above the dual clip", _PART),
            ("weight_clip_fraction_high", "fraction", "tokens whose weight was lowered", _PART),
            ("weight_clip_fraction_low", "fraction", "tokens whose weight was raised", _PART),
            ("truncated_fraction", "fraction", "tokens whose weight was capped", _PART),
            ("topr_truncated_fraction", "fraction", "tokens whose weight was capped", _PART),
            ("decoupled_truncated_fraction", "fraction", "tokens whose weight was capped", _PART),
            ("decoupled_masked_fraction", "fraction", "tokens masked, as above the cap", _PART),
            ("tis_truncated_fraction", "fraction", "tokens whose weight was capped", _PART),
            ("tis_masked_fraction", "fraction", "tokens masked, as above the cap", _PART),
            ("icepop_masked_fraction", "fraction", "tokens masked", _PART),
            ("sequence_mask_masked_fraction", "fraction", "tokens masked", _PART),
            ("veto_masked_fraction", "fraction", "tokens masked", _PART),
            ("<name>", "its own", "a value that a plug-in's slot returns from `metrics`", _PART),
        ),
    ),
    Stage(
        "logprob_gap",
        "Absolute difference between the log-probs of trainer and sampler, over tokens generated "
        "with the weights that are trained. `p95` and `max` come from a histogram and are up to "
        "1.45 times too large.",
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
        "MaxText's own scalars under MaxText's names, as means over a step's updates.",
        "every step, trainer `maxtext`",
        (
            ("loss", "loss", "total loss, which is minimised"),
            ("lm_loss", "loss", "the objective's part of the loss"),
            ("perplexity", "1", "exp(lm_loss), which in RL is not a perplexity"),
            ("z_loss", "loss", "MaxText's z-loss"),
            ("moe_lb_loss", "loss", "load-balancing loss of the experts"),
            ("indexer_loss", "loss", "loss of the indexer of sparse attention"),
            ("mtp_loss", "loss", "loss of multi-token prediction"),
            ("total_weights", "weight", "divisor of the loss"),
            ("current_learning_rate", "1", "learning rate"),
            ("grad_norm", "norm", "norm of the gradient as it is applied"),
            ("raw_grad_norm", "norm", "norm of the gradient before clipping"),
            ("param_norm", "norm", "norm of the parameters"),
            ("<name>", "MaxText's", "any other scalar of MaxText", "depends on MaxText's keys"),
        ),
    ),
    Stage(
        "evaluation",
        "Evaluations of one weight version each, during training, every `rlax.evaluation.every` "
        "steps. Confidence intervals are in `evaluation/*.json`.",
        _EVALUATED,
        (
            ("version", "version", "evaluated weight version: the step that produced it"),
            *_MEASURES,
        ),
    ),
    Stage(
        "evaluation_<set>",
        "The same measures for a further set, by its name in `rlax.evaluation.sets`.",
        _EVALUATED,
        _MEASURES,
    ),
)

METRICS: tuple[Metric, ...] = tuple(metric for stage in STAGES for metric in stage.metrics)


def find(name: str) -> Metric | None:
    """The row of a metric: its own, or else the pattern that it fits; None: unknown."""
    rows = (metric for metric in METRICS if metric.matches(name))
    return min(rows, key=lambda metric: metric.is_pattern, default=None)


def search(text: str) -> tuple[Metric, ...]:
    """Rows that have ``text`` in name or meaning, or whose pattern it fits."""
    return tuple(m for m in METRICS if text in m.name or text in m.meaning or m.matches(text))


_INTRODUCTION = """\
# Metrics

<!-- Written by `rlax metrics --markdown`; a test compares. -->

Every step reports numbers named `stage/name` to the run's `metrics.jsonl`, its \
[trackers](trackers.md) and Prometheus. This page lists all of them. `rlax metrics` prints the \
list, and `rlax metrics tokens` the metrics that have to do with tokens. Angle brackets stand for \
any name.
"""


def markdown() -> str:
    """docs/metrics.md, whole."""
    lines = [_INTRODUCTION]
    for stage in STAGES:
        lines += [f"## `{stage.name}`\n", f"{stage.text}\n"]
        lines += ["| metric | unit | meaning | when |", "| --- | --- | --- | --- |"]
        lines += [f"| `{m.name}` | {m.unit} | {m.meaning} | {m.when} |" for m in stage.metrics]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
