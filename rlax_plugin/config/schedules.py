"""Numbers of the config that may change from one RL step to the next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
)

if TYPE_CHECKING:
    import jax

Shape = Literal["linear", "cosine", "step"]
_LAST = 2**31 - 2  # the largest step, less 1
_COMPARED = 10_000  # steps at which two schedules are compared, besides their points


class Schedule(BaseModel):
    """A number that depends on the RL step; ``at`` computes it.

    All values lie between two of the numbers that the config gives.

    Attributes:
      shape: the way from a value to the next one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    shape: Shape = Field(
        default="linear",
        description="linear; cosine: half a period, slow at both ends; step: the value changes at "
        "once, when the next one is reached",
    )

    @property
    def corners(self) -> Sequence[tuple[int, float]]:
        """(step, value) of each value that the config gives, steps ascending."""
        raise NotImplementedError

    @property
    def last(self) -> float:
        """The value that it keeps in the end."""
        return self.corners[-1][1]

    @property
    def lowest(self) -> float:
        return min(value for _, value in self.corners)

    @property
    def highest(self) -> float:
        return max(value for _, value in self.corners)

    def at(self, step: Any) -> Any:
        """Returns the value at an RL step.

        Args:
          step: counts from 1: an int, or an array of JAX, which may be traced.

        Returns:
          A float, or an array of the step's shape.
        """
        if isinstance(step, int):
            return self._of_number(step)
        return self._of_array(step)

    def _of_number(self, step: int) -> float:
        (_, value), *_ = self.corners
        for (start, one), (end, other) in itertools.pairwise(self.corners):
            if step >= start:
                share = _SHARES[self.shape]((step - start) / (end - start), math)
                value = one * (1 - share) + other * share
            if step >= end:
                value = other
        return value

    def _of_array(self, step: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        (_, first), *_ = self.corners
        value = jnp.full(step.shape, first, jnp.result_type(step, float))
        for (start, one), (end, other) in itertools.pairwise(self.corners):
            # XLA divides by multiplying with a rounded reciprocal, so that 41 / 41 may be below 1:
            # integers alone decide which value is due.
            share = ((step - start) / (end - start)).astype(value.dtype)
            share = _SHARES[self.shape](share, jnp)
            value = jnp.where(step >= start, one * (1 - share) + other * share, value)
            value = jnp.where(step >= end, other, value)
        return value

    def __format__(self, spec: str) -> str:
        """Returns ``str(self)``: a number and a schedule are shown by one format."""
        return str(self)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """Returns its values in words, such as ``0.2 to 0.1, cosine until step 101``."""
        values = " to ".join(f"{value:g}" for _, value in self.corners)
        return f"{values}, {self.shape} until step {self.corners[-1][0]}"


_SHARES: Mapping[str, Any] = {
    "linear": lambda share, xp: share,
    "cosine": lambda share, xp: (1 - xp.cos(math.pi * share)) / 2,
    "step": lambda share, xp: 0.0,
}
"""Shape -> function (share of the steps between two values, below 1) -> share of the change."""


class Ramp[T](Schedule):
    """A way from one value to another.

    At step 1 the value is ``from``; after ``steps`` steps, from step ``steps + 1`` on, it is
    ``to``.
    """

    start: T = Field(alias="from", description="value at step 1")
    to: T = Field(description="value after the last of steps")
    steps: Annotated[int, Field(ge=1, le=_LAST)] = Field(
        description="number of RL steps from one value to the other"
    )

    @property
    def corners(self) -> Sequence[tuple[int, float]]:
        return ((1, _number(self.start)), (self.steps + 1, _number(self.to)))

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown = handler(self)
        if "start" in shown:
            shown = {"from": shown.pop("start"), **shown}
        return shown


class Points[T](Schedule):
    """Values at given steps.

    Before the first step the value is the first one, after the last step the last one.
    """

    points: Annotated[
        tuple[tuple[Annotated[int, Field(ge=1, le=_LAST + 1)], T], ...],
        Field(min_length=2, max_length=64),
    ] = Field(description="[step, value] of at least two steps, in their order")

    @field_validator("points", mode="before")
    @classmethod
    def _as_tuples(cls, points: Any) -> Any:
        # Strictly, only JSON's lists are tuples, and what another validator has read is Python's.
        if not isinstance(points, list):
            return points
        return tuple(tuple(one) if isinstance(one, list) else one for one in points)

    @field_validator("points")
    @classmethod
    def _in_order(cls, points: tuple[tuple[int, T], ...]) -> tuple[tuple[int, T], ...]:
        for (before, _), (after, _) in itertools.pairwise(points):
            if after <= before:
                raise ValueError(f"steps must increase, and {after} comes after {before}")
        return points

    @property
    def corners(self) -> Sequence[tuple[int, float]]:
        return tuple((step, _number(value)) for step, value in self.points)


def _number(value: Any) -> float:
    assert isinstance(value, int | float), "schedules are of numbers"
    return value


NUMBER, _RAMP, _POINTS = "[number]", "[ramp]", "[points]"
FORMS: Mapping[str, type[Schedule]] = {_RAMP: Ramp, _POINTS: Points}
"""Tag in the place of an error -> the form of a schedule that it is about."""


def _form(value: Any) -> str:
    """Returns the tag of the form in which a number is given."""
    if isinstance(value, Mapping):
        return _POINTS if "points" in value else _RAMP
    return next((tag for tag, form in FORMS.items() if isinstance(value, form)), NUMBER)


type Scheduled[T] = Annotated[
    Annotated[T, Tag(NUMBER)] | Annotated[Ramp[T], Tag(_RAMP)] | Annotated[Points[T], Tag(_POINTS)],
    Discriminator(_form),
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
    return value.last if isinstance(value, Schedule) else value


def lowest(value: float | Schedule) -> float:
    """Returns the lowest value in any step."""
    return value.lowest if isinstance(value, Schedule) else value


def highest(value: float | Schedule) -> float:
    """Returns the highest value in any step."""
    return value.highest if isinstance(value, Schedule) else value


def first_above(low: float | Schedule, high: float | Schedule) -> int | None:
    """Returns the first known step at which ``low`` is above ``high``; None if there is none.

    Long schedules are compared at their points, and at some thousand steps between them.
    """
    if lowest(high) >= highest(low):
        return None
    corners = {step for one in (low, high) if isinstance(one, Schedule) for step, _ in one.corners}
    steps = {1, *corners, *(max(1, step - 1) for step in corners)}
    last = max(corners, default=1)
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
