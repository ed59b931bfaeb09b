"""Built-in plug-ins keep the contracts of what they offer.

Among the first tests, since it is the longest that runs in the test process itself.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_server import serving

from rlax_plugin.build import Registry
from rlax_plugin.ports.kinds import ALL
from rlax_plugin.ports.manager import Manager
from rlax_plugin.testing import check_plugin

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
BUILT_IN = ("rlax_plugin.testing", *PROJECT["entry-points"]["rlax_plugin"])
DATA_SETS: dict[str, dict[str, object]] = {
    "prompt_source/hf": {"dataset": "x"},
    "prompt_source/jsonl": {"path": "x"},
    "prompt_source/mixture": {"sources": {"a": {"name": "jsonl", "path": "x"}}},
    "prompt_source/parquet": {"path": "x"},
    "prompt_source/reasoning_gym": {"tasks": {"leg_counting": {}}},
    "prompt_source/tfds": {"dataset": "x"},
}
SMALL = {"train_problems": 30, "test_problems": 20, "validation_problems": 20}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Of which the verifier and the judge ask for a reward, and which plays episodes."""
    verdict = {"reward": 1.0, "choices": [{"message": {"content": '{"score": 10}'}}]}
    played = {"reward": 1.0}
    with serving(lambda asked: asked.json(played if asked.path == "/play" else verdict)) as found:
        yield found.url


@pytest.fixture(autouse=True, scope="module")
def no_service_of_wandb() -> Iterator[None]:
    """Its process serves all runs of this one, until it is told to end."""
    yield
    if (wandb := sys.modules.get("wandb")) is not None:
        wandb.teardown()


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_ins_keep_their_contracts(name: str, tmp_path: Path, server: str) -> None:
    slow = {"flush_s": 45.0}  # to import
    options = {
        "rlax_arithmetic": {"prompt_source/arithmetic": {"data_dir": str(tmp_path), **SMALL}},
        "rlax_datasets": DATA_SETS,
        "rlax_http": {
            "environment/http": {"url": f"{server}/play"},
            "environment/program": {"command": ["sh", "-c", "echo '{\"reward\": 1}'"]},
            "reward/http_verifier": {"url": server},
            "reward/llm_judge": {"base_url": server, "model": "m", "verdict": "json"},
        },
        # Its database takes seconds to set up, and has tests of its own.
        "rlax_mlflow": {"tracker/mlflow": {"tracking_uri": (tmp_path / "mlflow").as_uri(), **slow}},
        "rlax_rast": {"rollout_engine/rast": {"after": "x", "before": "y"}},
        "rlax_rewards": {"reward/format": {"pattern": ".*"}},
        "rlax_tensorboard": {"tracker/tensorboard": slow},
        "rlax_tools": {"environment/tools": {"shell": True}, "prompt_source/harbor": {"path": "x"}},
        "rlax_verifiers": {"prompt_source/verifiers": {"python": "x", "taskset": "y"}},
        "rlax_wandb": {"tracker/wandb": {"mode": "offline", **slow}},
    }
    checked = check_plugin(name, options=options.get(name))
    for one in checked:
        assert one.plugin == name and bool(one.rules) != bool(one.note)
    needs_model = {one.name for one in checked if one.note}
    needing = {"harbor", "jetstream", "maxtext", "number_tasks", "reasoning_gym", "tools"}
    needing |= {"rast", "verifiers", "vllm"}
    needing |= {one.partition("/")[2] for one in DATA_SETS} if name == "rlax_datasets" else set()
    assert needs_model == needing & {one.name for one in checked}


def test_there_is_a_built_in_of_every_kind_that_a_run_needs() -> None:
    """Of the others docs/plugin_hooks.md has an example, which its own test runs."""
    offers = Registry(Manager(BUILT_IN)).offers
    needed = [kind.name for kind in ALL if kind.toy or not kind.places[0].endswith("[]")]
    assert len(needed) >= 12 and [kind for kind in needed if not offers[kind]] == []
