"""The memory that ``rlax check`` estimates, beside that of programs compiled for TPUs.

The compiled figures are those of docs/scale.md: bytes in all per chip, from ``rlax check
--compile`` with libtpu 0.0.50.1.
"""

import json
from pathlib import Path

import pytest
import rlax_jetstream
from command_line import rlax
from rlax_maxtext.critic.checking import check_critic
from rlax_maxtext.critic.options import CriticConfig

from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.protocols import BuildContext

SCALE = str(Path(__file__).parents[2] / "configs/scale.yml")
TINY = str(Path(__file__).with_name("tiny.yml"))
GIB = 1 << 30
QWEN = ("model_name=qwen3-30b-a3b", "rlax.rollouts.groups_per_step=8")


def estimated(*overrides: str) -> tuple[float, float]:
    """GiB of the trainer and of a worker, over all devices."""
    result = rlax("check", SCALE, *overrides, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["memory_bytes"]
    parts = (found["rlax.trainer"], found["rlax.rollouts.engine"])
    return tuple(sum(part.values()) / GIB for part in parts)


def of_worker(file: str, **mesh: int) -> dict[str, int]:
    """Bytes that the worker's own check finds, by purpose."""
    sizes = {
        "ici_fsdp_parallelism": 1,
        **{f"ici_{axis}_parallelism": n for axis, n in mesh.items()},
    }
    overrides = [f"rlax.rollouts.engine.maxtext.{key}={size}" for key, size in sizes.items()]
    given = resolve(file, [*(QWEN if file == SCALE else ["hardware=tpu"]), *overrides])
    engine = rlax_jetstream.rlax_register_rollout_engine()["jetstream"]
    options = engine.config_class.model_validate(given.section.rollouts.engine.options)
    context = BuildContext.outside_run(given.section, given)
    return dict(engine.check(options, context).memory)


@pytest.mark.slow
def test_a_dense_model() -> None:
    trainer, worker = estimated()
    assert trainer / 16 == pytest.approx(12.6, rel=0.1)  # v5e-16
    assert worker / 8 == pytest.approx(11.6, rel=0.1)  # v5e-8


@pytest.mark.long
def test_an_expert_model_whose_caches_are_on_every_expert_shard() -> None:
    memory = of_worker(SCALE, tensor=4, expert=4)  # v5e-16
    assert sum(memory.values()) / 16 == pytest.approx(21.9 * GIB, rel=0.1)  # prefill
    # 48 layers x 64 slots x 2,048 tokens x 4 heads x 128 in bfloat16, keys and values; 3 GiB of
    # them on each chip are compiled as well.
    copy = 2 * 2 * 48 * 64 * 2048 * 4 * 128
    assert copy == 4 * 3 * GIB
    caches = memory["key-value caches of 64 slots, 4 copies"]
    assert caches == pytest.approx(4 * copy, rel=0.01)

    memory = of_worker(SCALE, tensor=4, expert=2)  # v5p-16
    assert sum(memory.values()) / 8 == pytest.approx(40.3 * GIB, rel=0.1)  # prefill
    assert sum(memory.values()) / 8 == pytest.approx(43.9 * GIB, rel=0.1)  # decode
    # A step of the loop reads each chip's half of the 64 slots, and writes as much.
    parts = memory["parts of the caches, for the decode loop"]
    assert parts / 8 == pytest.approx(2 * 3 * GIB / 2, rel=0.01)

    memory = of_worker(SCALE, tensor=4, expert=-1)
    caches = memory["key-value caches of 64 slots, a copy for every 4 devices"]
    assert caches == pytest.approx(copy, rel=0.01)


@pytest.mark.slow
def test_copies_on_a_mesh() -> None:
    # 2 layers x keys and values x 64 slots x 16 tokens x 2 heads x 16, in float32; and for each
    # token its sample, for each slot a length, for each layer a position, in 4 bytes.
    caches, others = 2 * 2 * 64 * 16 * 2 * 16 * 4, 2 * 4 * (64 * 16 + 64 + 1)
    weights, norms = 4 * 22688, 4 * 5 * 32

    memory = of_worker(TINY)
    assert memory["key-value caches of 64 slots"] == caches + others
    assert memory["weights"] == memory["new weights, while they are loaded"] == weights

    # The heads of the caches are divided, what belongs to a slot or a token is not.
    memory = of_worker(TINY, data=2, tensor=2)
    assert memory["key-value caches of 64 slots, 2 copies"] == 2 * caches + 4 * others
    assert memory["weights, 2 copies"] == 2 * weights
    memory = of_worker(TINY, expert=2, tensor=-1)
    assert memory["key-value caches of 64 slots, 2 copies"] == 2 * (caches + others)
    assert memory["weights"] == weights + norms  # scales of norms are on each expert shard
    # A step reads half of the slots of each copy, and writes as much.
    assert memory["parts of the caches, for the decode loop"] == 2 * caches

    memory = of_worker(TINY, fsdp=-1)
    assert memory["key-value caches of 64 slots, a copy for every device"] == caches + others
    assert memory["weights"] == weights
    memory = of_worker(TINY, data=-1, tensor=2)
    assert memory["weights, a copy for every 2 devices"] == weights


def test_a_critic_has_no_output_layer_and_two_moments() -> None:
    # A layer has 4 x 1,024 parameters of attention, 3 x 2,048 of the MLP and two norms of 32;
    # beside them an embedding of 64 x 32 and a norm, and the head of 32 and a bias.
    given = resolve(TINY, ["logits_via_embedding=false", "rlax.trainer.name=maxtext"])
    context = BuildContext.outside_run(given.section, given)
    for layers, model in ((2, {}), (1, {"base_num_decoder_layers": 1})):
        parameters = layers * (4 * 1024 + 3 * 2048 + 2 * 32) + 64 * 32 + 32
        found = check_critic(CriticConfig(model=model), context)
        assert found is not None and found.says["critic"].startswith(f"{parameters + 33:,} para")
        first, second, third, inputs = found.memory.values()
        assert (first, second, third) == (4 * parameters, 8 * parameters, 4 * parameters)
        assert inputs == layers * 8 * 16 * 32 * 4
