"""The one table of metrics: every name that a step can report, its unit and its meaning.

Names are ``stage/name``. A part in angle brackets stands for any text without a slash, so that
``objective/<name>`` is whatever a plug-in's slot reports. Imports the standard library only.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_GAP = "steps with such tokens"
_KL = "where there is KL"
_PART = "objectives with such a part"
_EVALUATED = "steps during which one ends"
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
    ("pass_at_<k>", "fraction", "problems that one of k samples solves"),
    ("majority_at_<k>", "fraction", "problems that most of k samples solve"),
    ("reward_mean", "reward", "mean over samples whose reward did not fail", _SCORED),
    ("reward_errors", "fraction", "samples whose reward raised or took too long"),
    ("length_mean", "tokens", "of completions, mean"),
    ("length_p95", "tokens", "of completions, 95th percentile"),
    ("truncated", "fraction", "samples cut at max_new_tokens"),
)

STAGES: tuple[Stage, ...] = (
    Stage(
        "reward",
        "Of all groups scored since the last step, also of those that did not train.",
        "every step",
        (
            ("mean", "reward", "mean over samples whose reward did not fail", _IN_STEP),
            ("errors", "samples", "whose reward raised, took too long or ended its process"),
            (
                "processes_replaced",
                "processes",
                "replaced because they exited, crashed or exceeded `reward_s`",
            ),
        ),
    ),
    Stage(
        "reward_part",
        "Of the same samples, where `rlax.rewards` names several: their sum is the reward.",
        f"{_IN_STEP}, with several rewards",
        (("<reward>", "reward", "mean of what this one gave; of one named twice, with its place"),),
    ),
    Stage(
        "curation",
        "What became of groups since the last step.",
        "every step",
        (
            ("groups_issued", "groups", "asked of workers"),
            ("groups_scored", "groups", "generated and scored"),
            ("groups_rejected", "groups", "rejected by a filter"),
            ("groups_dropped", "groups", "too stale to train, or from a worker not to be trusted"),
        ),
    ),
    Stage(
        "length",
        "Completion tokens per sample. If the second stays below the first, long answers get lost.",
        "every step",
        (
            ("issued_mean", "tokens", "mean over all scored samples", _IN_STEP),
            ("trained_mean", "tokens", "mean over the samples of the batch"),
        ),
    ),
    Stage(
        "batch",
        "The batch as it is laid out.",
        "every step",
        (
            ("groups", "groups", "in the batch"),
            ("rows", "rows", "of the batch, empty ones included"),
            ("tokens", "tokens", "in these rows, prompts included"),
            ("packing_efficiency", "fraction", "of the rows' positions that hold a token"),
        ),
    ),
    Stage(
        "staleness",
        "Of the batch's groups: weight versions from their oldest token's to the update's; 1 is "
        "on-policy.",
        "every step",
        (("max", "versions", "largest"), ("mean", "versions", "mean")),
    ),
    Stage(
        "rollout",
        "The workers.",
        "every step",
        (
            ("tokens", "tokens", "generated, of the groups scored since the last step"),
            ("workers", "workers", "registered at the step's end"),
        ),
    ),
    Stage("train", "What trains.", "every step", (("tokens", "tokens", "of completions"),)),
    Stage(
        "time",
        "Where time goes. The trainer waits, trains and publishes in turn; the rest is beside it.",
        "every step",
        (
            ("step_s", "s", "from the end of the last step to that of this one"),
            ("wait_s", "s", "the trainer waits for its batch"),
            ("train_s", "s", "from having the batch to the end of the update"),
            ("publish_on_loop_s", "s", "the trainer hands its weights over"),
            ("publish_s", "s", "the weight version written last takes"),
            ("commit_s", "s", "until the batch and its journal are on disk"),
            ("generate_s", "s", "from the first group issued to the last one generated"),
            ("reward_s", "s", "mean over scored groups, their waits included"),
        ),
    ),
    Stage(
        "objective",
        "Over trained tokens, from the loss itself; means, where nothing else is said. "
        "[objectives.md](objectives.md) has the formulas. A trainer reports what it computes; "
        "`maxtext` computes all of them.",
        "every step",
        (
            ("tokens", "tokens", "that train, once per epoch"),
            ("sequences", "samples", "that train, once per epoch"),
            ("ratio", "ratio", "policy over old policy"),
            ("advantage", "reward", "advantage, in the unit the objective gives it"),
            ("advantage_abs", "reward", "its size"),
            ("entropy", "nats", "of the policy"),
            ("kl_k1", "nats", "KL of sampler to policy, estimate K1"),
            ("kl_k3", "nats", "KL of sampler to policy, estimate K3"),
            ("chi_squared", "1", "mean of w^2, less 1, with w the policy over the sampler"),
            ("effective_sample_size", "fraction", "(sum w)^2 / (n sum w^2)"),
            ("perplexity_gap", "fraction", "the trainer's perplexity over the sampler's, less 1"),
            ("reference_kl_k1", "nats", "KL to the reference policy, estimate K1", _KL),
            ("reference_kl_k3", "nats", "KL to the reference policy, estimate K3", _KL),
            (
                "reprefill_missed",
                "fraction",
                "tokens that take the proximal policy: the weights that generated them are gone",
                "old_policy: reprefill",
            ),
            ("clip_fraction_high", "fraction", "tokens with A > 0 and a ratio too high", _PART),
            ("clip_fraction_low", "fraction", "tokens with A < 0 and a ratio too low", _PART),
            ("dual_clip_fraction", "fraction", "tokens with A < 0 above the dual clip", _PART),
            ("weight_clip_fraction_high", "fraction", "tokens whose weight is lowered", _PART),
            ("weight_clip_fraction_low", "fraction", "tokens whose weight is raised", _PART),
            ("truncated_fraction", "fraction", "tokens whose weight is cut", _PART),
            ("topr_truncated_fraction", "fraction", "tokens whose weight is cut", _PART),
            ("decoupled_truncated_fraction", "fraction", "tokens whose weight is cut", _PART),
            ("decoupled_masked_fraction", "fraction", "tokens above the cap, dropped", _PART),
            ("tis_truncated_fraction", "fraction", "tokens whose weight is cut", _PART),
            ("tis_masked_fraction", "fraction", "tokens above the cap, dropped", _PART),
            ("icepop_masked_fraction", "fraction", "tokens masked", _PART),
            ("sequence_mask_masked_fraction", "fraction", "tokens masked", _PART),
            ("veto_masked_fraction", "fraction", "tokens masked", _PART),
            ("<name>", "its own", "what a plug-in's slot returns from `metrics(inputs)`", _PART),
        ),
    ),
    Stage(
        "logprob_gap",
        "Difference in size of the trainer's and the sampler's log-probs, of tokens generated with "
        "the weights that train. The upper two come from a histogram: up to 1.45 times too large.",
        "every step",
        (
            ("tokens", "tokens", "that the other figures are of"),
            ("mean", "nats", "mean", _GAP),
            ("p95", "nats", "95th percentile", _GAP),
            ("max", "nats", "largest", _GAP),
        ),
    ),
    Stage(
        "learning",
        "MaxText's own scalars under MaxText's names, means over a step's updates.",
        "every step, trainer `maxtext`",
        (
            ("loss", "loss", "what is minimised"),
            ("lm_loss", "loss", "the objective's part of it"),
            ("perplexity", "1", "exp(lm_loss), which is no perplexity here"),
            ("z_loss", "loss", "MaxText's z-loss"),
            ("moe_lb_loss", "loss", "balance of the experts' load"),
            ("indexer_loss", "loss", "of sparse attention's indexer"),
            ("mtp_loss", "loss", "of multi-token prediction"),
            ("total_weights", "weight", "what the loss is divided by"),
            ("current_learning_rate", "1", "learning rate"),
            ("grad_norm", "norm", "of the gradient as it is applied"),
            ("raw_grad_norm", "norm", "of the gradient before it is clipped"),
            ("param_norm", "norm", "of the parameters"),
            ("<name>", "MaxText's", "any other scalar of MaxText's", "as MaxText's keys ask"),
        ),
    ),
    Stage(
        "evaluation",
        "Held-out problems, at a version kept for it while training goes on: "
        "`rlax.evaluation.every`. Without the intervals, which are in `evaluation/*.json`.",
        _EVALUATED,
        (("version", "version", "of the weights, which is the step that made them"), *_MEASURES),
    ),
    Stage(
        "evaluation_<set>",
        "The same of a further set: `rlax.evaluation.sets` by name.",
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

Every step reports numbers named `stage/name`: in the run's `metrics.jsonl`, to its \
[trackers](trackers.md), and to Prometheus. This is the whole list. `rlax metrics` prints it, and \
`rlax metrics tokens` what has to do with tokens. What stands in angle brackets is any name.
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
