"""The programs of ``rlax check --compile``, compiled for this machine in place of a slice."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rlax_maxtext.checking import kept_copies
from tiny_engine import NEW, PROMPT, SLOTS
from tiny_engine import configure as configure_worker
from tiny_loop import LENGTH, ROWS, TINY, policy_gradient

from maxtext_overrides.compiling import topology
from maxtext_overrides.compiling.measured import flops_per_token
from maxtext_overrides.compiling.train_step import compile_train_step
from maxtext_overrides.compiling.worker import compile_worker
from maxtext_overrides.config.loading import load
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import Choice
from rlax_plugin.config.loading import resolve
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import ARRAYS, DEMONSTRATED

LAYERS, WIDTH, MLP, VOCAB = 2, 32, 64, 64
MATRICES = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * MLP)
PARAMETERS = MATRICES + VOCAB * WIDTH + (2 * LAYERS + 1) * WIDTH  # tied embedding, and norms


@pytest.fixture
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from maxtext.trainers.pre_train import train_compile

    def mesh(config):
        axes = tuple(config.mesh_axes)
        return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(axes)), axes)

    monkeypatch.setattr(train_compile, "get_topology_mesh", mesh)


def train_step(*argv: str, **added: ArraySpec):
    config = load(
        resolve(TINY, argv), compile_topology="v5e-1", compile_topology_num_slices=1, steps=8
    )
    return compile_train_step(
        config,
        arrays=ARRAYS | added,
        update_arrays={},
        objective=policy_gradient,
        outputs=(),
        copies={"copy that is being published": True, "reference policy": False},
        rounds=False,
    )


@pytest.mark.slow
def test_the_train_step(on_this_machine) -> None:
    program = train_step("scan_layers=true", "remat_policy=full")
    assert not program.rejected, program.rejected
    assert (program.name, program.work) == ("train step", "8 rows x 16 tokens")
    # Weights and both moments of AdamW in float32; the batch and a few counters are small.
    assert program.memory["arguments"] == pytest.approx(12 * PARAMETERS, rel=0.06)
    assert program.memory["aliased"] == pytest.approx(12 * PARAMETERS, rel=0.01)
    assert program.beside == dict.fromkeys(program.beside, 4 * PARAMETERS)
    assert list(program.beside) == ["copy that is being published", "reference policy"]
    # Each pass meets each matrix once, and the output layer, which is the tied embedding.
    assert program.flops == pytest.approx(3 * 2 * ROWS * LENGTH * (MATRICES + VOCAB * WIDTH))


@pytest.mark.slow
def test_of_adapters_copies_are_kept(on_this_machine) -> None:
    lora = "lora={enable_lora: true, lora_rank: 2, lora_alpha: 2, lora_module_path: decoder/.*wo}"
    program = train_step("scan_layers=true", "remat_policy=full", lora)
    assert not program.rejected, program.rejected
    kept = LAYERS * 2 * (MLP + WIDTH)
    # The step needs more than the base, whose copy is gone before it.
    assert program.memory["temporaries"] > 4 * PARAMETERS
    assert list(program.beside.values()) == [4 * kept, 4 * kept]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("added", "kept"),
    [
        ({}, 8),  # of 16 positions of a row: max_new_tokens
        ({DEMONSTRATED: ARRAYS["rl_mask"]}, LENGTH),  # of a demonstration any token may train
    ],
)
def test_the_output_layer_of_a_train_step_meets_the_kept_positions_only(
    on_this_machine, added, kept
) -> None:
    program = train_step("vocab_size=512", "scan_layers=true", "remat_policy=full", **added)
    assert not program.rejected, program.rejected
    assert program.flops == pytest.approx(
        3 * 2 * ROWS * (LENGTH * MATRICES + kept * 512 * WIDTH), rel=1e-9
    )


@pytest.mark.parametrize("steps", [1, 2])
def test_operations_of_a_token_do_not_depend_on_accumulation(steps: int) -> None:
    accumulated = f"gradient_accumulation_steps={steps}"
    config = load(resolve(TINY, [accumulated]), steps=8)
    assert flops_per_token(config) == pytest.approx(2 * (MATRICES + VOCAB * WIDTH))


@pytest.mark.slow
def test_the_programs_of_a_worker() -> None:
    told = []
    config = configure_worker()
    prefill, decode = compile_worker(
        config, jax.devices(), told.append, group_size=4, prompt_tokens=PROMPT, rounds=True
    )
    assert told == ["prefill", "decode"]
    assert (prefill.work, decode.work) == ("1 prompt x 8 tokens", "one token in each of 8 slots")
    assert prefill.flops == pytest.approx(2 * PROMPT * (MATRICES + VOCAB * WIDTH))
    assert decode.flops == pytest.approx(2 * SLOTS * (MATRICES + VOCAB * WIDTH))
    scales = (2 * LAYERS + 1) * WIDTH  # which are not rounded
    weights = 2 * PARAMETERS + 2 * scales
    caches = SLOTS * (PROMPT + NEW) * LAYERS * 2 * WIDTH * 4
    assert decode.memory["arguments"] == pytest.approx(weights + caches, rel=0.05)
    assert decode.beside == {"new weights, while they are loaded": weights}


def test_a_slice_that_does_not_exist() -> None:
    assert topology.keys("v5e-16")["compile_topology"] == "v5e-16"
    with pytest.raises(ConfigError, match="is no slice of TPUs that MaxText knows; did you mean"):
        topology.keys("v5e-17")


def test_copies_that_a_trainer_keeps() -> None:
    def slots(needs_reference: bool, old_policy: str, max_staleness: int):
        algorithm = SimpleNamespace(old_policy=old_policy)
        return SimpleNamespace(
            needs_reference=needs_reference, algorithm=algorithm, max_staleness=max_staleness
        )

    def listed(*names: str):
        return SimpleNamespace(signals=[Choice(name=name, offload=True) for name in names])

    published = "copy that is being published"
    assert kept_copies(slots(False, "sampler", 2), listed()) == {published: True}
    both = slots(True, "reprefill", 2)
    assert kept_copies(both, listed()) == {
        published: True,  # the only one that is a weight version
        "reference policy": False,
        "old policy (reprefill)": False,
    }
    assert kept_copies(both, listed("reference", "old_policy")) == {published: True}
