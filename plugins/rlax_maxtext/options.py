"""Options of trainer ``maxtext``, and what of them the rest of the config must agree with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Section,
    check_readable,
    resolve,
)

KEY = "rlax.trainer"


class WarmStart(Section):
    """A supervised start by MaxText's ordinary loop, stopped inside a window of pass@1."""

    enabled: bool = Field(
        default=False, description="whether training starts with right answers, supervised"
    )
    steps: PositiveInt = Field(default=2000, description="supervised steps at most")
    batch_rows: PositiveInt = Field(default=256, description="examples per step")
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=2e-3, description="of the supervised steps, constant"
    )
    pass_at_1_from: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.28, description="stop once validation pass@1 reaches this"
    )
    pass_at_1_to: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.35, description="an error if it overshoots this"
    )
    check_every: PositiveInt = Field(
        default=5, description="steps between looks at validation pass@1"
    )
    train_problems: NonNegativeInt = Field(
        default=0, description="learn from the first so many training problems; 0: from all"
    )
    problems: PositiveInt = Field(default=512, description="validation problems looked at")
    directory: PathText = Field(
        default="",
        description="of a finished warm start, which is used instead; empty: "
        "<run_dir>/prepared/warm_start",
    )

    @model_validator(mode="after")
    def _a_window(self) -> WarmStart:
        if self.enabled and self.pass_at_1_from > self.pass_at_1_to:
            raise ConfigError(
                "warm_start.pass_at_1_from",
                self.pass_at_1_from,
                f"must not exceed pass_at_1_to = {self.pass_at_1_to:g}",
            )
        return self


class TrainerOptions(Section):
    """Options of ``maxtext``."""

    warm_start: WarmStart = WarmStart()
    offload_reference: bool = Field(
        default=False, description="keep the reference policy in host memory between steps"
    )
    offload_old_policy: bool = Field(
        default=False, description="keep the copy that old_policy: reprefill needs in host memory"
    )
    allow_untested: bool = Field(
        default=False,
        description="run although MaxText's source differs from what was tested; workers read it "
        "as well",
    )


def check_start(options: TrainerOptions, context: BuildContext) -> None:
    """Rejects options without effect, and a warm start whose local directory is not there.

    Raises:
      ConfigError: see above.
    """
    slots, staleness = resolve(context.section, context.part), context.section.staleness
    keeps_copy = slots.algorithm.old_policy == "reprefill" and staleness.max_staleness > 1
    if options.offload_old_policy and not keeps_copy:
        raise ConfigError(
            f"{KEY}.offload_old_policy",
            True,
            "has no effect: only rlax.objective.old_policy: reprefill with "
            "rlax.staleness.max_staleness above 1 keeps a copy",
        )
    if options.offload_reference and not slots.needs_reference:
        raise ConfigError(
            f"{KEY}.offload_reference",
            True,
            "has no effect while rlax.objective.kl.coefficient is 0",
        )
    if "://" not in options.warm_start.directory:
        check_directory(options.warm_start, context)


def check_directory(warm: WarmStart, context: BuildContext) -> None:
    """Looks for the finished warm start that is to be used, if one is.

    Raises:
      ConfigError: nothing is there, or it cannot be reached within ``rlax.deadlines.rpc_s``.
    """
    if warm.enabled and warm.directory:
        deadline_s = context.section.deadlines.rpc_s
        check_readable(f"{KEY}.warm_start.directory", warm.directory, deadline_s)
