"""When ``rlax.rollouts.engine.quantization`` is refused, before a model is loaded."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.ports.protocols import BuildContext

TIS = {"old_policy": "proximal", "corrections": [{"name": "truncated_importance_sampling"}]}
KEY = "rlax.rollouts.engine"


def check(engine, builds=False, logged_samples=None, **objective):
    section = RlaxSection(
        logged_samples=logged_samples or {},
        plugins=("rlax_jetstream", "rlax_objectives"),
        prompt_source={"name": "none"},
        rewards=({"name": "none"},),
        rollouts={"engine": {"name": "jetstream"} | engine},
        objective={"preset": "dapo"} | objective,
    )
    context = BuildContext.outside_run(section)
    choice = section.rollouts.engine
    registry = registry_for(section)
    (registry.part if builds else registry.check_part)("rollout_engine", choice, KEY, context)


@pytest.mark.parametrize(
    "objective", [TIS, {"preset": "aipo"}, {"corrections": [{"name": "icepop"}]}]
)
def test_quantised_workers_need_an_objective_that_corrects(objective):
    check({"quantization": "int8"}, **objective)
    with pytest.raises(ConfigError, match="needs an objective that corrects") as error:
        check({"quantization": "int8"})
    assert (error.value.key, error.value.value) == (f"{KEY}.quantization", "int8")
    assert "old_policy: proximal with corrections" in str(error.value)
    check({"quantization": "int8"}, allow_uncorrected=True)
    check({"quantization": "int8"}, logged_samples={"path": "log.parquet"})  # they only evaluate
    check({})


def test_maxtexts_own_key_and_other_formats_are_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"Set rlax\.rollouts\.engine\.quantization: int8"
    ) as error:
        check({"maxtext": {"quantization": "int8"}}, **TIS)
    assert error.value.key == f"{KEY}.maxtext.quantization"
    with pytest.raises(ConfigError, match="must not be set"):  # a worker has keys of its own
        check({"maxtext": {"quantization": "int8"}}, builds=True, **TIS)
    with pytest.raises(ConfigError, match="'int8'"):
        check({"quantization": "nvfp4"}, **TIS)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"num_experts": 4}, r"must be null with num_experts = 4"),
        ({"quantization": "int8"}, r"^quantization = 'int8': must be empty with rlax"),
    ],
)
def test_keys_with_which_nothing_could_be_quantised_are_refused_at_the_start(keys, says):
    maxtext = "".join(f"{key}: {value}\n" for key, value in keys.items()).encode()
    for engine in ("int8", "null"):
        config = of_yaml(maxtext + KEPT.replace(b"int8", engine.encode()), "config.yml")
        context = BuildContext.outside_run(config.section, config)
        choice = config.section.rollouts.engine
        with pytest.raises(ConfigError, match=says) if engine == "int8" else nullcontext():
            registry_for(config.section).check_part("rollout_engine", choice, KEY, context)


KEPT = b"""
rlax:
  prompt_source: {name: none}
  rewards: [{name: none}]
  rollouts: {engine: {name: jetstream, quantization: int8, warm_up: false}}
  objective: {preset: aipo}
"""


def test_the_documented_command_evaluates_the_exact_policy():
    page = (Path(__file__).parents[3] / "docs/engines.md").read_text()
    (argument,) = re.findall(r"`rlax eval RUN ([^`]+)` measures the trainer's policy", page)
    engine = of_yaml(KEPT, "config.yml", [argument]).section.rollouts.engine
    assert engine.options == {"quantization": None, "warm_up": False}
