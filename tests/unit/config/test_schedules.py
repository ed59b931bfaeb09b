"""Schedules of numbers: their values by hand, compiled or not, and the configs that are refused."""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
import pytest
from pydantic import Field

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import (
    RlaxSection,
    Scheduled,
    Section,
    first_above,
    highest,
    last_of,
    lowest,
    schedules_in,
    value_at,
)
from rlax_plugin.config.validation import validate


class Options(Section):
    high: Scheduled[Annotated[float, Field(gt=0)]] = Field(default=0.2, description="the bound")
    low: Scheduled[float] | None = None


def of(value):
    return validate(Options, {"high": value}, "rlax.part").high


LINEAR = {"from": 1, "to": 2, "steps": 4}
VALUES = [  # at steps 1 to 7
    (LINEAR, [1, 1.25, 1.5, 1.75, 2, 2, 2]),
    (LINEAR | {"shape": "step"}, [1, 1, 1, 1, 2, 2, 2]),
    # (1 - cos(pi x)) / 2 at x = 1/4, 1/2 and 3/4
    (
        LINEAR | {"shape": "cosine"},
        [1, 1.5 - math.sqrt(2) / 4, 1.5, 1.5 + math.sqrt(2) / 4, 2, 2, 2],
    ),
    ({"from": 3, "to": 1, "steps": 1}, [3, 1, 1, 1, 1, 1, 1]),
    (0.3, [0.3] * 7),
]


@pytest.mark.parametrize(("given", "values"), VALUES)
def test_values_by_hand(given, values) -> None:
    schedule = of(given)
    assert [value_at(schedule, step) for step in range(1, 8)] == pytest.approx(values, abs=1e-15)
    if given != 0.3:
        # The numbers of the config exactly, where they are due.
        assert (schedule.at(1), schedule.at(schedule.steps + 1)) == (given["from"], given["to"])
        assert (lowest(schedule), highest(schedule)) == (min(values), max(values))
        assert last_of(schedule) == values[-1]
        assert of(Options(high=schedule).model_dump(mode="json")["high"]) == schedule


def test_a_compiled_function_computes_them_for_every_step_with_one_program() -> None:
    schedules = [of(given) for given, _ in VALUES]
    traces = []

    @jax.jit
    def values(step: jax.Array) -> jax.Array:
        traces.append(step)
        return jnp.stack([jnp.asarray(value_at(one, step), jnp.float32) for one in schedules])

    for step in range(1, 8):
        expected = [of_steps[step - 1] for _, of_steps in VALUES]
        assert values(jnp.float32(step)).tolist() == pytest.approx(expected, abs=1e-6)
    # Where nothing trains, the step is 0: the first values.
    assert values(jnp.float32(0)).tolist() == pytest.approx([v[0] for _, v in VALUES], abs=1e-6)
    assert len(traces) == 1
    long = of({"from": 0.2, "to": 0.1, "steps": 10**6, "shape": "cosine"})
    for step in (2, 333_334, 10**6):  # to an ulp or two
        assert float(jax.jit(long.at)(step)) == pytest.approx(long.at(step), abs=3e-8)
    # Integers alone decide which value is due: 41 / 41 may be below 1 in a program.
    all_lengths = [of(LINEAR | {"steps": n, "shape": "step"}) for n in range(1, 101)]
    at = jax.jit(lambda steps: jnp.stack([one.at(steps[i]) for i, one in enumerate(all_lengths)]))
    assert at(jnp.arange(1, 101)).tolist() == [1] * 100
    assert at(jnp.arange(2, 102)).tolist() == [2] * 100


BAD = [
    ({"from": 1, "steps": 2}, "to", "must be given"),
    ({"from": 1, "to": 2, "steps": 0}, "steps", "greater than or equal to 1"),
    ({"from": 1, "to": 2, "steps": 1.5}, "steps", "whole number"),
    ({"from": 1, "to": 2, "steps": 2**31 - 1}, "steps", "less than or equal"),
    ({"from": 1, "to": -1, "steps": 2}, "to", "greater than 0"),
    ({"from": float("nan"), "to": 1, "steps": 2}, "from", "finite"),
    ({"from": 1, "to": 2, "steps": 2, "shape": "square"}, "shape", "'linear', 'cosine' or 'step'"),
    ({"from": 1, "to": 2, "steps": 2, "shap": "step"}, "shap", "did you mean 'shape'?"),
]


@pytest.mark.parametrize(("given", "key", "reason"), BAD)
def test_a_bad_schedule_is_refused_with_its_key(given, key, reason) -> None:
    with pytest.raises(ConfigError) as error:
        of(given)
    assert error.value.key == f"rlax.part.high.{key}"
    assert reason in str(error.value)


@pytest.mark.parametrize("given", ["much", True, [1, 2], None, 0, -1, float("nan")])
def test_a_bad_number_is_refused_as_without_schedules(given) -> None:
    with pytest.raises(ConfigError) as error:
        of(given)
    assert error.value.key == "rlax.part.high"
    assert "the bound; default 0.2" in str(error.value)


def test_bounds_that_cross_are_found() -> None:
    falls, rises = of({"from": 3, "to": 1, "steps": 4}), of({"from": 1, "to": 3, "steps": 4})
    assert first_above(rises, falls) == 4  # 2.5 and 1.5; both are 2 at step 3
    assert first_above(rises, 3.0) is first_above(1, 2) is first_above(1.0, falls) is None
    assert first_above(2, 1) == 1
    # Only between the ends of both: 1 - x above (1 + cos(pi x)) / 2 in the second half.
    cosine = of({"from": 1, "to": 1e-9, "steps": 1000, "shape": "cosine"})
    assert first_above(of({"from": 1, "to": 1e-9, "steps": 1000}), cosine) == 502


def section(**keys):
    content = {"prompt_source": {"name": "any"}, "rewards": [{"name": "any"}], **keys}
    return validate(RlaxSection, content, "rlax")


def test_every_schedule_of_a_config_is_listed_with_its_key() -> None:
    found = section(
        rewards=[
            {"name": "one", "weight": {"from": 1, "to": 3, "steps": 1}},
            {"name": "two", "weight": {"from": 0, "to": 1, "steps": 2}},
        ],
        rollouts={"temperature": {"from": 1.5, "to": 0.5, "steps": 2}},
        objective={"kl": {"coefficient": LINEAR}, "entropy_coefficient": LINEAR},
    )
    assert [key for key, _ in schedules_in(found, "rlax")] == [
        "rlax.rewards.0.weight",
        "rlax.rewards.1.weight",
        "rlax.rollouts.temperature",
        "rlax.objective.kl.coefficient",
        "rlax.objective.entropy_coefficient",
    ]
    assert [found.rollouts.temperature_at(step) for step in (1, 2, 3)] == [1.5, 1.0, 0.5]
    assert found.rollouts.last_temperature == 0.5
    assert found.rollouts.only_temperature is None
    assert str(found.rewards[1]) == "(0 to 1, linear until step 3) * two"


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"rollouts": {"temperature": {"from": 0, "to": 1, "steps": 9}}}, "rollouts.temperature"),
        (
            {"rollouts": {"temperature": {"from": 1, "to": 1e-4, "steps": 9}}},
            "rollouts.temperature.to",
        ),
        ({"rewards": [{"name": "a", "weight": {"from": 1, "to": 2}}]}, "rewards.0.weight.steps"),
        (
            {"rewards": [{"name": "a", "weight": {"from": 1, "to": -1, "steps": 2}}]},
            "rewards.0.weight",
        ),
        (
            {"evaluation": {"sets": {"x": {"rewards": [{"name": "a", "weight": LINEAR}]}}}},
            "evaluation.sets.x.rewards",
        ),
    ],
)
def test_a_schedule_that_makes_no_sense_there_is_refused(keys, key) -> None:
    with pytest.raises(ConfigError) as error:
        section(**keys)
    assert error.value.key == f"rlax.{key}"
