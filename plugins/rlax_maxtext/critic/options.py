"""Options of the critics ``critic`` and ``value_head``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlax_plugin.api import NonNegativeInt, Optimizer, PathText, PositiveInt, Section


class Learning(Section):
    """Options of learning from a batch; see docs/critic.md."""

    clip: Annotated[float, Field(ge=0)] = Field(
        default=0.5,
        description="largest distance from the value before the batch at which a value still "
        "gains: the loss of a token is the larger one of the squared errors of the value and of "
        "the value clipped to this distance. 0: no clipping",
    )
    aggregation: Literal["token_mean", "sequence_mean"] = Field(
        default="token_mean",
        description="token_mean: all tokens of an update weigh the same; sequence_mean: all "
        "sequences do",
    )
    epochs: PositiveInt = Field(default=1, description="number of passes over each batch")
    mini_batches: PositiveInt = Field(
        default=1, description="number of updates per pass; each gets other rows of the batch"
    )
    warm_up_steps: NonNegativeInt = Field(
        default=0,
        description="number of first steps in which only the critic learns, and the policy stays "
        "as it is",
    )


class CriticOptimizer(Optimizer):
    """AdamW for all weights of a critic."""

    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=1e-5, description="size of a step, constant"
    )
    max_norm: Annotated[float, Field(ge=0)] = Field(
        default=1.0,
        description="largest norm of the gradient of all parameters together; a larger gradient "
        "is scaled down to it. 0: no limit",
    )


class CriticConfig(Learning):
    """Values of a critic with weights of its own, for the advantage gae.

    It is a model of MaxText's with a linear head in place of the output layer, on the devices of
    the policy. All its weights learn.
    """

    start: PathText = Field(
        default="policy",
        description="the first weights: policy: a copy of those that training starts from; "
        "scratch: random ones; otherwise the path of a checkpoint of parameters, as for "
        "load_parameters_path. The head starts at 0",
    )
    model: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="MaxText's keys that differ from the policy's, for a critic of another size, "
        "such as {base_num_decoder_layers: 2}",
    )
    optimizer: CriticOptimizer = CriticOptimizer()


class ValueHeadConfig(Learning):
    """Values of a linear head on the features of the policy's last layer, for the advantage gae.

    The head alone learns from its loss: no gradient flows into the policy.
    """

    optimizer: Optimizer = Optimizer()
