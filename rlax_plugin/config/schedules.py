"""Numbers of the config that may change from one RL step to the next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
)

if TYPE_CHECKING:
    import jax

Shape = Literal["linear", "cosine", "step"]
_LAST = 2**31 - 2  # the largest step, less 1
_COMPARED = 10_000  # steps at which two schedules are compared, besides their ends


class Schedule[T](BaseModel):
    """A number that goes from one value to another while the RL steps pass; ``at`` computes it.

    At step 1 the value is ``from``; after ``steps`` steps, from step ``steps + 1`` on, it is
    ``to``. No value lies outside of these two.

    Attributes:
      shape: the way from one value to the other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    start: T = Field(alias="from", description="value at step 1")
    to: T = Field(description="value after the last of steps")
    steps: Annotated[int, Field(ge=1, le=_LAST)] = Field(
        description="number of RL steps from one value to the other"
    )
    shape: Shape = Field(
        default="linear",
        description="linear; cosine: half a period, slow at both ends; step: the value changes at "
        "once, after the last of steps",
    )

    @property
    def ends(self) -> tuple[float, float]:
        """Both values, the first one first."""
        first, last = self.start, self.to
        assert isinstance(first, int | float) and isinstance(last, int | float)
        return first, last

    def at(self, step: Any) -> Any:
        """Returns the value at an RL step.

        Args:
          step: counts from 1: an int, or an array of JAX, which may be traced.

        Returns:
          A float, or an array of the step's shape.
        """
        if not isinstance(step, int):
            return self._of_array(step)
        first, last = self.ends
        if step <= 1 or step > self.steps:
            return first if step <= 1 else last
        share = _SHARES[self.shape]((step - 1) / self.steps, math)
        return first * (1 - share) + last * share

    def _of_array(self, step: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        first, last = self.ends
        dtype = jnp.result_type(step, float)
        # XLA divides by multiplying with a rounded reciprocal, so that 41 / 41 may be below 1:
        # integers alone decide which value is due.
        share = _SHARES[self.shape](((step - 1) / self.steps).astype(dtype), jnp)
        value = jnp.where(step <= 1, first, first * (1 - share) + last * share)
        return jnp.where(step > self.steps, last, value).astype(dtype)

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown = handler(self)
        if "start" in shown:
            shown = {"from": shown.pop("start"), **shown}
        return shown

    def __format__(self, spec: str) -> str:
        """Returns ``str(self)``: a number and a schedule are shown by one format."""
        return str(self)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """Returns its values in words, such as ``0.2 to 0.1, cosine until step 101``."""
        first, last = self.ends
        return f"{first:g} to {last:g}, {self.shape} until step {self.steps + 1}"


_SHARES: Mapping[str, Any] = {
    "linear": lambda share, xp: share,
    "cosine": lambda share, xp: (1 - xp.cos(math.pi * share)) / 2,
    "step": lambda share, xp: 0.0,
}
"""Shape -> function (share of the steps between two values, below 1) -> share of the change."""


NUMBER, SCHEDULE = "[number]", "[schedule]"
"""Tags in the place of an error."""


def _form(value: Any) -> str:
    """Returns the tag of the form in which a number is given."""
    return SCHEDULE if isinstance(value, Mapping | Schedule) else NUMBER


type Scheduled[T] = Annotated[
    Annotated[T, Tag(NUMBER)] | Annotated[Schedule[T], Tag(SCHEDULE)], Discriminator(_form)
]
"""A number, or a schedule of numbers, each of which is a ``T``."""


def value_at(value: float | Schedule, step: Any) -> Any:
    """Returns a number as it is, and the value of a schedule at an RL step.

    Args:
      step: see ``Schedule.at``.
    """
    return value.at(step) if isinstance(value, Schedule) else value


def last_of(value: float | Schedule) -> float:
    """Returns the value in the end, which counts where nothing is trained, as in evaluations."""
    return value.ends[1] if isinstance(value, Schedule) else value


def lowest(value: float | Schedule) -> float:
    """Returns the lowest value in any step."""
    return min(value.ends) if isinstance(value, Schedule) else value


def highest(value: float | Schedule) -> float:
    """Returns the highest value in any step."""
    return max(value.ends) if isinstance(value, Schedule) else value


def first_above(low: float | Schedule, high: float | Schedule) -> int | None:
    """Returns the first known step at which ``low`` is above ``high``; None if there is none.

    Long schedules are compared at their ends, and at some thousand steps between them.
    """
    if lowest(high) >= highest(low):
        return None
    ends = {one.steps + 1 for one in (low, high) if isinstance(one, Schedule)}
    steps = {1, *ends, *(end - 1 for end in ends)}
    last = max(ends, default=1)
    steps.update(range(1, last, max(1, last // _COMPARED)))
    return next((s for s in sorted(steps) if value_at(low, s) > value_at(high, s)), None)


def schedules_in(value: Any, key: str) -> Iterator[tuple[str, Schedule]]:
    """Yields (dotted key, schedule) of every schedule in a section, or in the options of a part."""
    if isinstance(value, Schedule):
        yield key, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from schedules_in(getattr(value, name), f"{key}.{name}")
    elif isinstance(value, Mapping):
        yield from _inside(value.items(), key)
    elif isinstance(value, tuple | list):
        yield from _inside(enumerate(value), key)


def _inside(items: Iterable[tuple[Any, Any]], key: str) -> Iterator[tuple[str, Schedule]]:
    for name, value in items:
        yield from schedules_in(value, f"{key}.{name}")
