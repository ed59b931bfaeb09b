"""docs/objectives.md lists the inputs of a slot, with shapes."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
from documents import read, sections
from installs import on_path, write

from rlax_plugin.api import TokenInputs
from rlax_plugin.config.schedules import Schedule
from rlax_plugin.testing import evaluate_objective

SECTION = sections(read("objectives.md"), 2)["The inputs of a slot"]
ROWS = re.findall(r"^\| `(\w+)(?:\(\w*\))?` \| ([^|]+) \| [^|]+ \|$", SECTION, re.MULTILINE)
NOT_HERE = ("batch", "reward_parts_btp")  # a mapping, and what a batch without a run lacks
SCHEDULE = Schedule.model_validate({"from": 1, "to": 0, "steps": 2})
FIELDS = [field.name for field in dataclasses.fields(TokenInputs)]

SEEN = """
    from rlax_plugin.api import Extension, NoOptions, hookimpl

    looks = []

    def seen(given):
        for look in looks:
            look(given)
        return given.logprobs_bt

    @hookimpl
    def rlax_register_gradient_term():
        return {"seen": Extension(NoOptions, lambda config, context: seen)}
"""


def test_every_field_and_member_of_token_inputs_is_listed_in_their_order() -> None:
    members = [name for name in vars(TokenInputs) if not name.startswith("_")]
    members = [name for name in members if name not in FIELDS]
    assert [name for name, _ in ROWS] == FIELDS + members


def test_the_listed_shapes_and_dtypes_are_those_that_a_slot_gets(tmp_path: Path) -> None:
    write(tmp_path, "di_seen", SEEN)
    logprobs = np.log([[0.5, 0.2, 0.1], [0.4, 0.1, 0.1]])
    found: dict[str, str] = {}

    def look(inputs: TokenInputs) -> None:  # while it is traced
        for name, _ in ROWS:
            if name in NOT_HERE:
                continue
            value = getattr(inputs, name)
            if callable(value):
                given = SCHEDULE if name == "value" else inputs.mask_bt
                value = value(*[given] * len(inspect.signature(value).parameters))
            found[name] = shown(value)

    with on_path(tmp_path):
        importlib.import_module("di_seen").looks.append(look)
        evaluate_objective(
            {"preset": "grpo", "grad_1": {"name": "seen"}},
            plugins=("di_seen",),
            logprobs_bt=logprobs,
            behaviour_logprobs_bt=logprobs,
            rewards_b=[1.0, 0.0],
            mask_bt=[[1, 1, 1], [1, 0, 0]],
            group_size=2,
        )
    assert found == {name: shape for name, shape in ROWS if name not in NOT_HERE}


def shown(value: Any) -> str:
    if isinstance(value, TokenInputs):
        return "`TokenInputs`"
    if isinstance(value, int):
        return "int, not traced"
    return f"{ {(2, 3): '[rows, length]', (): 'scalar'}[value.shape] }, {value.dtype}"
