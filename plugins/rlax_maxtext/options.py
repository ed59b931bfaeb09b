"""Options of trainer ``maxtext``, and their checks against the rest of the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from maxtext_overrides.trainer import first_weights
from rlax_plugin.api import (
    PREPARED,
    BuildContext,
    CheckResult,
    Choice,
    ConfigError,
    NonNegativeInt,
    PathText,
    PositiveInt,
    RunFiles,
    Scheduled,
    Section,
    check_readable,
)

KEY = "rlax.trainer"
DATA = f"{KEY}.warm_start.data"
"""Key of the demonstrations before RL."""
MIXED = f"{KEY}.demonstrations"
"""Key of those beside RL; their data is the key below."""
WARM_START_FOLDER = f"{PREPARED}/warm_start"
"""Folder of a run for its own warm start."""
RECORD = "warm_start.json"
"""File that says which step was the last of a finished warm start."""


_STEPS = 2000
_OF_ANSWERS = ("pass_at_1_from", "pass_at_1_to", "required", "train_problems", "train_every")


class WarmStart(Section):
    """Supervised training before RL by MaxText's ordinary loop.

    With data it trains on demonstrations, for some epochs; without, on the right answers of the
    prompts, until pass@1 is in a range.
    """

    enabled: bool = Field(
        default=False,
        description="true: before RL, train the model on data, or without data on right answers. "
        "The prompt source must provide these: arithmetic and sources of texts do, one of your own "
        "needs a method answer_tokens and an attribute pad_id",
    )
    data: Choice | None = Field(
        default=None,
        description="demonstrations to train on: jsonl, parquet, hf or tfds with its options, as "
        "rlax.prompt_source has them, such as {name: jsonl, path: mine.jsonl}. A row has messages, "
        "or prompt and completion, and maybe tools. Those that are longer than max_target_length + "
        "1 tokens are left out and counted. null: right answers of the prompts",
    )
    turns: Literal["all", "last"] = Field(
        default="all",
        description="the assistant's messages of data that train: all, or the last one of each "
        "conversation, as it must be with a chat template that changes earlier messages",
    )
    epochs: PositiveInt = Field(default=1, description="number of passes over data")
    steps: PositiveInt | None = Field(
        default=None,
        description="largest number of supervised steps; null: all epochs of data, or 2000. "
        "Without data the run stops with an error if pass@1 is still below pass_at_1_from then, "
        "see required",
    )
    batch_rows: PositiveInt = Field(
        default=256,
        description="rows per supervised step, each with an example; with data each has up to "
        "rlax.batches.sequences_per_row. Must be given with data",
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=2e-3,
        description="constant learning rate of the supervised steps. Must be given with data: "
        "common is 1e-5 for a pretrained model",
    )
    pass_at_1_from: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.28, description="stop as soon as pass@1 on the validation split reaches this"
    )
    pass_at_1_to: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.35, description="it is an error if pass@1 is above this when training stops"
    )
    required: bool = Field(
        default=True,
        description="false: RL starts after steps supervised steps also if pass@1 is still below "
        "pass_at_1_from",
    )
    check_every: PositiveInt = Field(
        default=5,
        description="number of supervised steps between two measurements: with data of the loss of "
        "its split validation, without of pass@1, which near the goal is measured after every step",
    )
    train_problems: NonNegativeInt = Field(
        default=0, description="use only this number of training problems, the first ones; 0: all"
    )
    train_every: PositiveInt = Field(
        default=1,
        description="2: use only every second of these training problems, so that others are new "
        "to RL; 1: all",
    )
    problems: PositiveInt = Field(
        default=512,
        description="number of validation problems on which pass@1 is measured, or of held-out "
        "demonstrations of data on which the loss is",
    )
    directory: PathText = Field(
        default="",
        description="directory of a finished warm start to use instead of training; empty: "
        "<run_dir>/prepared/warm_start, where the run writes its own",
    )

    @property
    def most_steps(self) -> int:
        """Largest number of steps on right answers."""
        return _STEPS if self.steps is None else self.steps

    def check_together(self) -> None:
        self._of_one_kind()
        self._a_window()

    def _of_one_kind(self) -> None:
        given = self.model_fields_set
        if self.data is None:
            for option in ("turns", "epochs"):
                if option in given:
                    reason = "needs warm_start.data, the demonstrations"
                    raise ConfigError(f"warm_start.{option}", getattr(self, option), reason)
            return
        for option in _OF_ANSWERS:
            if option in given:
                reason = "must not be given together with warm_start.data: it is of right answers"
                raise ConfigError(f"warm_start.{option}", getattr(self, option), reason)
        for option in ("batch_rows", "learning_rate") if self.enabled else ():
            if option not in given:
                reason = "must be given together with warm_start.data"
                raise ConfigError(f"warm_start.{option}", None, reason)

    def _a_window(self) -> None:
        if self.enabled and self.pass_at_1_from > self.pass_at_1_to:
            reason = f"must not exceed pass_at_1_to = {self.pass_at_1_to:g}"
            raise ConfigError("warm_start.pass_at_1_from", self.pass_at_1_from, reason)


class MixedDemonstrations(Section):
    """Demonstrations that train beside RL, in rows of their own in every batch.

    To the loss of each update is added weight x the mean of - log pi over the trained tokens of its
    demonstrations.
    """

    data: Choice | None = Field(
        default=None,
        description="demonstrations that train in the same updates as RL, a source as "
        "warm_start.data is; null: none",
    )
    turns: Literal["all", "last"] = Field(
        default="all", description="the assistant's messages of data that train, as of warm_start"
    )
    rows: PositiveInt = Field(
        default=8,
        description="rows of demonstrations in a batch, beside those of RL; each has up to "
        "rlax.batches.sequences_per_row. A multiple of rlax.objective.mini_batches",
    )
    weight: Scheduled[Annotated[float, Field(ge=0)]] = Field(
        default=0.1, description="factor of the mean loss of their tokens, or a schedule of it"
    )

    @property
    def added_rows(self) -> int:
        """Number of rows that a batch of RL has more."""
        return 0 if self.data is None else self.rows

    def check_together(self) -> None:
        for option in ("turns", "rows", "weight") if self.data is None else ():
            if option in self.model_fields_set:
                reason = "needs demonstrations.data, the demonstrations"
                raise ConfigError(f"demonstrations.{option}", getattr(self, option), reason)


class TrainerOptions(Section):
    """Trains with MaxText's own training loop.

    warm_start is a supervised training before RL, on demonstrations (data) or on right answers,
    which stops as soon as pass@1 is in a given range. demonstrations train beside RL.
    """

    warm_start: WarmStart = WarmStart()
    demonstrations: MixedDemonstrations = MixedDemonstrations()
    allow_untested: bool = Field(
        default=False,
        description="true: run although the installed source of MaxText differs from the tested "
        "version; this also applies to workers",
    )


# Adam moves each weight by about the learning rate in an update; weights are about this large.
HUGE_LEARNING_RATE = 0.1
"""Above it, a run is warned of its learning rate before it starts."""
# Of MaxText's supervised training and its data.
_NOT_OF_RL = (
    "dataset_name",
    "eval_dataset_name",
    "eval_split",
    "grain_train_files",
    "hf_path",
    "hf_train_files",
    "num_epoch",
    "packing",
    "sft_train_on_completion_only",
    "train_data_columns",
    "train_split",
    "use_sft",
)


def warnings_of_rate(rate: Any, optimizer: str) -> Iterator[tuple[str, str]]:
    """Warns of a learning rate with which an optimizer that normalizes updates learns nothing."""
    if isinstance(rate, int | float) and rate > HUGE_LEARNING_RATE and optimizer != "sgd":
        yield (
            "learning_rate",
            f"is {rate:g}, with which the first update destroys the model; common are 1e-3 for a "
            "small model from random weights and 1e-6 for a pretrained one",
        )


def _warnings(maxtext: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from warnings_of_rate(maxtext.get("learning_rate"), str(maxtext.get("opt_type")))
    for key in _NOT_OF_RL:
        if maxtext.get(key):
            yield (
                key,
                "has no effect: it is of MaxText's supervised training, and batches come from "
                "rlax.prompt_source and the rollouts",
            )


def check_answers(warm: WarmStart, context: BuildContext) -> None:
    """Checks that it is clear on whose right answers a warm start would train.

    Raises:
      ConfigError: there are several environments.
    """
    if warm.enabled and not warm.directory and warm.data is None and context.section.environments:
        reason = (
            "must be given with rlax.environments and rlax.trainer.warm_start.enabled: right "
            "answers would be those of the first environment alone"
        )
        raise ConfigError(DATA, None, reason)


def check_start(options: TrainerOptions, context: BuildContext) -> CheckResult:
    """Rejects a warm start, a local tokenizer or first weights that do not exist.

    Returns:
      Warnings about keys of MaxText.

    Raises:
      ConfigError: see above.
    """
    warm = options.warm_start
    if "://" not in warm.directory:
        check_directory(warm, context)
    check_answers(warm, context)
    if warm.enabled and warm.data is not None and not warm.directory:
        try:
            with of_data(DATA):
                context.check_part("prompt_source", warm.data, DATA)
        except ConfigError:
            if not has_ended(context):
                raise
    if (mixed := options.demonstrations).data is not None:
        mini_batches = context.section.objective.mini_batches
        if mixed.rows % mini_batches:
            reason = f"must be a multiple of rlax.objective.mini_batches = {mini_batches}"
            raise ConfigError(f"{MIXED}.rows", mixed.rows, reason)
        with of_data(f"{MIXED}.data"):
            context.check_part("prompt_source", mixed.data, f"{MIXED}.data")
    tokenizer = str(context.maxtext.get("tokenizer_path") or "")
    named = context.maxtext.get("tokenizer_type") == "huggingface" and tokenizer.startswith("/")
    if named and not Path(tokenizer).exists():
        raise ConfigError("tokenizer_path", tokenizer, "does not exist")
    for of in (first_weights.chosen, first_weights.chosen_adapters):
        if (found := of(context.maxtext)) is not None and "://" not in found[1]:
            first_weights.check_place(*found, context.maxtext.get("scan_layers"))
    return CheckResult(warnings=list(_warnings(context.maxtext)))


@contextmanager
def of_data(data_key: str) -> Iterator[None]:
    """Names the key of the demonstrations where a source of prompts names its own."""
    try:
        yield
    except ConfigError as error:
        place, own = error.key.removeprefix("split of "), "rlax.prompt_source"
        if not place.startswith(own):
            raise
        key = f"{data_key}{place.removeprefix(own)}"
        raise ConfigError(key, error.value, error.reason, error.others) from None


def weights_in(files: RunFiles) -> str | None:
    """Path of the weights of the finished warm start in a directory; None if there is none."""
    record = files.get_json(RECORD)
    if record is None:
        return None
    items = f"checkpoints/{record['step'] - 1}/items"
    return files.location(items) if files.exists(items) else None


def has_ended(context: BuildContext) -> bool:
    """True if the run's own warm start has ended: its examples are not needed any more."""
    given = context.maxtext
    base, name = given.get("base_output_directory"), given.get("run_name")
    # Outside a run, as in ``rlax check``, only the config says where it is.
    run = context.run_url or (f"{base}/{name}" if base and name else "")
    return bool(run) and weights_in(RunFiles(f"{run}/{WARM_START_FOLDER}")) is not None


def check_directory(warm: WarmStart, context: BuildContext) -> None:
    """Looks for the finished warm start that the config names, if it names one.

    Raises:
      ConfigError: it does not exist, or cannot be reached within ``rlax.deadlines.rpc_s``.
    """
    if warm.enabled and warm.directory:
        deadline_s = context.section.deadlines.rpc_s
        check_readable(f"{KEY}.warm_start.directory", warm.directory, deadline_s)


def check_step_rows(warm: WarmStart, devices: int) -> None:
    """Checks that the rows of a supervised step can be divided among the devices.

    Raises:
      ConfigError: they cannot.
    """
    if not warm.directory and warm.batch_rows % devices:
        reason = f"must be a multiple of {devices} devices"
        raise ConfigError(f"{KEY}.warm_start.batch_rows", warm.batch_rows, reason)
