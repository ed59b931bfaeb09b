"""Low-rank adapters in MaxText's train loop and in a worker, with models of 2 layers."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_engine
import tiny_loop as tests
from command_line import rlax
from flax import nnx
from rlax_maxtext.canary_forward import CanaryForward

from maxtext_overrides import adapters
from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.models.merged import MergedWeights
from maxtext_overrides.models.reading import HeldWeights, stored_shapes
from maxtext_overrides.rounding import copied
from maxtext_overrides.sampler.decode import DecodeEngine
from maxtext_overrides.trainer.train_loop import Events, run_train_loop
from maxtext_overrides.variables import published, restore
from rlax_plugin.base.errors import ConfigError

DEMO = str(Path(__file__).parents[2] / "configs/demo.yml")
PATH = "decoder/layers.*/(self_attention/(query|key|value|out)|mlp/(wi_0|wi_1|wo))"
LORA = {"enable_lora": True, "lora_rank": 4, "lora_alpha": 8.0, "lora_module_path": PATH}
# Only attention has adapters in a model with experts, whose matrices are no modules of their own.
EXPERTS = {
    "decoder_block": "mixtral",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "base_moe_mlp_dim": 64,
    "sparse_matmul": False,
    "megablox": False,
    "lora": LORA | {"lora_module_path": PATH.replace("|mlp/(wi_0|wi_1|wo)", "")},
}
TOKENS = np.random.default_rng(0).integers(0, tests.VOCAB, 9).astype(np.int32)


def is_base(name):
    return not adapters.is_adapter(name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tests.train(
        tmp_path_factory.mktemp("lora"), recorder=tests.Recorder(looks=True), lora=LORA
    )


def test_only_adapters_change_and_training_starts_from_the_base(trained):
    first, last = trained.weights[0], trained.weights[3]
    names = [name for name in first if adapters.is_adapter(name)]
    assert len(names) == 14  # two for each of seven matrices, whose layers are scanned
    for name in first:
        same = np.array_equal(first[name], last[name])
        assert same == is_base(name), name
    assert not any(np.asarray(first[n]).any() for n in names if n.endswith("_b"))
    # 2 layers; a rank-4 adapter of [inputs, outputs] has 4 (inputs + outputs) parameters.
    counts = adapters.matched({n: a.shape for n, a in first.items()})
    assert counts["decoder/layers/mlp/wo"] == 2 * 4 * (64 + 32)
    assert counts["decoder/layers/self_attention/query"] == 2 * 4 * (32 + 32)


def test_adapters_of_a_model_with_experts_train_and_the_router_stays(tmp_path):
    run = tests.train(tmp_path, recorder=tests.Recorder(stop_after=2), **EXPERTS)
    first, last = run.weights[0], run.weights[2]
    assert any("gate" in name for name in first)
    for name in first:
        assert np.array_equal(first[name], last[name]) == is_base(name), name
    assert len([name for name in first if not is_base(name)]) == 8


def norm_of_first_gradient(recorder):
    return float(recorder.metrics[1]["learning/raw_grad_norm"])


def test_accumulation_computes_gradients_of_adapters_only(tmp_path, trained):
    """MaxText's norm of the gradient is that of all gradients that a step computes."""
    parts = {"gradient_accumulation_steps": 2, "per_device_batch_size": 4}
    halves = tests.train(tmp_path, lora=LORA, **parts)
    norm = norm_of_first_gradient(trained)
    assert norm_of_first_gradient(halves) == pytest.approx(norm, rel=1e-5)
    for name, array in trained.weights[3].items():
        np.testing.assert_allclose(halves.weights[3][name], array, atol=2e-4, err_msg=name)


def test_adapters_are_float32_whatever_the_base_is(tmp_path):
    """In bfloat16 an update of 1e-4 changes few entries of A."""
    model = abstract_model(tests.configure(tmp_path, lora=LORA, weight_dtype="bfloat16"), "train")
    for name, like in published(nnx.state(model)).items():
        assert like.dtype == ("float32" if adapters.is_adapter(name) else "bfloat16"), name


def at_start(tmp_path, look, **overrides):
    found = []

    class Enough(Exception):
        pass

    def on_start(loop):
        found.append(look(loop))
        raise Enough

    config = tests.configure(tmp_path, **{"lora": LORA} | overrides)
    events = Events(batches=tests.batch, on_step_end=lambda *_: None, on_start=on_start)
    with pytest.raises(Enough):
        run_train_loop(config, events, arrays=tests.ARRAYS, objective=tests.policy_gradient)
    return found[0]


def with_random_b(variables):
    rng = np.random.default_rng(1)
    return {
        name: jax.numpy.asarray(rng.normal(size=a.shape) / 20, a.dtype)
        if name.endswith("_lora_b")
        else a.copy()
        for name, a in variables.items()
    }


def merged(variables, axis):
    """W + alpha / rank A B, and and adapters that add nothing; layers are at ``axis``."""
    found = {}
    for name, a in variables.items():
        found[name] = np.zeros_like(a) if adapters.is_adapter(name) else np.asarray(a)
        if f"{name}_lora_a" not in variables:
            continue
        a_ir, b_ro = (np.asarray(variables[f"{name}_lora_{x}"], np.float64) for x in "ab")
        if a_ir.ndim == 3:
            product = np.einsum("ilr,rlo->lio", a_ir, b_ro)
            kernel = np.moveaxis(found[name], axis, 0)
            full = kernel + 2 * product.reshape(kernel.shape)
            full = np.moveaxis(full, 0, axis)
        else:
            full = found[name] + 2 * (a_ir @ b_ro).reshape(found[name].shape)
        found[name] = full.astype(np.float32)
    return found


@pytest.mark.parametrize(
    "model",
    [
        {"scan_layers": True},
        pytest.param({"scan_layers": False}, marks=pytest.mark.long),
        EXPERTS | {"scan_layers": True},
    ],
    ids=["scanned", "unrolled", "experts"],
)
def test_adapters_compute_what_the_full_update_does_in_trainer_and_worker(tmp_path, model):
    def look(loop):
        variables = with_random_b(published(loop.model_state))
        forward = CanaryForward(TOKENS)
        start, canary, full = (
            np.asarray(forward(loop, {n: jax.numpy.asarray(a) for n, a in one.items()}).logprobs)
            for one in (published(loop.model_state), variables, merged(variables, 1))
        )
        return variables, start, canary, full

    variables, start, canary, full = at_start(tmp_path, look, **model)
    assert np.abs(canary - start).max() > 0.05
    np.testing.assert_allclose(canary, full, atol=1e-5)
    engine = DecodeEngine(tiny_engine.configure(**{"lora": LORA} | model))
    assert engine.variables_like().keys() == variables.keys()
    np.testing.assert_allclose(engine.logprobs(variables, TOKENS), canary, atol=1e-5)
    config = tests.configure(tmp_path, **{"lora": LORA} | model)
    exported = MergedWeights(*(HeldWeights(dict(variables)) for _ in "ab"), config)
    for name in filter(is_base, variables):
        expected = merged(variables, 1)[name]
        np.testing.assert_allclose(exported.take(name), expected, atol=1e-6, err_msg=name)
    base = DecodeEngine(tiny_engine.configure(**model | {"lora": {}}))
    plain = {n: a for n, a in merged(variables, 1).items() if is_base(n)}
    np.testing.assert_allclose(base.logprobs(plain, TOKENS), canary, atol=1e-5)


def test_rounded_adapters_compute_the_same_in_bfloat16(tmp_path):
    def look(loop):
        variables = with_random_b(published(loop.model_state))
        rounded = copied(variables, loop.config, True)
        assert all(rounded[n].dtype == "bfloat16" for n in filter(adapters.is_adapter, variables))
        forward = CanaryForward(TOKENS)
        return [np.asarray(forward(loop, one).logprobs) for one in (variables, rounded)]

    np.testing.assert_array_equal(*at_start(tmp_path, look, dtype="bfloat16"))


def test_gradients_are_those_of_finite_differences(tmp_path):
    def look(loop):
        state = restore(loop.model_state, with_random_b(published(loop.model_state)))
        data = {k: v for k, v in tests.batch(1).items() if not k.startswith("rl_")}

        def loss(parameters, rest):
            model = nnx.merge(loop.graph, parameters, rest)
            logits = model(
                decoder_input_tokens=data["inputs"],
                decoder_positions=data["inputs_position"],
                decoder_segment_ids=data["inputs_segmentation"],
                enable_dropout=False,
            )
            return -jax.numpy.mean(jax.nn.log_softmax(logits)[..., 3])

        own, rest = nnx.split_state(state, nnx.LoRAParam, ...)
        with loop.shardings():
            gradients = published(jax.jit(jax.grad(loss))(own, rest))
            rng = np.random.default_rng(2)
            value = jax.jit(loss)
            for name, gradient in gradients.items():
                direction = rng.normal(size=gradient.shape).astype(np.float32)
                direction /= np.linalg.norm(direction)
                moved = [
                    float(
                        value(
                            restore(own, published(own) | {name: published(own)[name] + step}), rest
                        )
                    )
                    for step in (1e-2 * direction, -1e-2 * direction)
                ]
                expected = (moved[0] - moved[1]) / 2e-2
                found = float(np.sum(np.asarray(gradient) * direction))
                assert found == pytest.approx(expected, rel=0.02, abs=1e-4), name
        return len(gradients)

    assert at_start(tmp_path, look) == 14


@pytest.mark.ci
def test_a_training_that_continues_needs_its_base(tmp_path):
    """The base comes from a checkpoint; MaxText alone would make one from the seed."""
    full = tests.train(
        tmp_path, recorder=tests.Recorder(stop_after=1), run_name="base", enable_checkpointing=True
    )
    base = str(tmp_path / "base/checkpoints/0/items")
    saved = {"enable_checkpointing": True, "checkpoint_period": 2, "load_parameters_path": base}
    whole = tests.train(tmp_path, run_name="whole", steps=4, lora=LORA, **saved)
    for name, array in full.weights[1].items():
        np.testing.assert_array_equal(array, whole.weights[4][name], err_msg=name)
    tests.train(
        tmp_path,
        run_name="halves",
        recorder=tests.Recorder(stop_after=2),
        steps=4,
        lora=LORA,
        **saved,
    )
    with pytest.raises(ConfigError, match=r"load_parameters_path.*is not the base of the adapters"):
        tests.train(
            tmp_path, run_name="halves", steps=4, lora=LORA, **saved | {"load_parameters_path": ""}
        )
    resumed = tests.train(tmp_path, run_name="halves", steps=4, lora=LORA, **saved)
    assert resumed.calls[0] == ("start", 2)
    for name, array in whole.weights[4].items():
        np.testing.assert_array_equal(array, resumed.weights[4][name], err_msg=name)
    # A checkpoint is the adapters and their optimizer; another run may start from it.
    path = str(tmp_path / "halves/checkpoints/1/items")
    other = tests.train(
        tmp_path, run_name="other", steps=1, lora=LORA | {"lora_restore_path": path}, **saved
    )
    for name, array in whole.weights[2].items():
        np.testing.assert_array_equal(array, other.weights[0][name], err_msg=name)
    assert all(map(adapters.is_adapter, stored_shapes("", path)))
    restored = LORA | {"lora_restore_path": path}
    with pytest.raises(
        ConfigError, match=r"lora_alpha = 9\.0: must be 8\.0, with which the adapters"
    ):
        tests.train(tmp_path, run_name="third", lora=restored | {"lora_alpha": 9.0}, **saved)
    (tmp_path / "halves/base.json").unlink()
    with pytest.raises(ConfigError, match=r"^lora.lora_restore_path = .*has no base\.json$"):
        tests.train(tmp_path, run_name="third", lora=restored, **saved)
    with pytest.raises(ConfigError, match=r"^load_parameters_path = .*has no base\.json$"):
        tests.train(tmp_path, run_name="halves", steps=4, lora=LORA, **saved)


def test_a_run_that_trained_nothing_may_get_another_base(tmp_path):
    for seed in (0, 1):
        at_start(tmp_path, bool, init_weights_seed=seed, enable_checkpointing=True)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"lora_module_path": ""}, "lora.lora_module_path = '': must be set: MaxText knows"),
        ({"lora_module_path": "decoder/x"}, "matches no module of this model, which has decoder/"),
    ],
)
def test_modules_that_are_not_there_are_an_error(tmp_path, keys, error):
    with pytest.raises(ConfigError, match=error):
        tests.train(tmp_path, lora=LORA | keys)


def test_the_output_layer_gets_no_adapters(tmp_path):
    """It may compute in float32, with which a rounded adapter would not agree."""
    lora = LORA | {"lora_module_path": "decoder/logits_dense"}
    config = tests.configure(tmp_path, lora=lora, logits_via_embedding=False)
    with pytest.raises(ConfigError, match=r"matches decoder/logits_dense, a \[32, 64\] matrix to"):
        abstract_model(config, "train")


def test_check_looks_for_adapters_to_start_from(tmp_path):
    keys = [f"lora.{key}={value}" for key, value in LORA.items()]
    result = rlax("check", DEMO, *keys, f"lora.lora_restore_path={tmp_path}")
    assert result.exit_code == 2
    assert "lora.lora_restore_path = " in result.stderr and "is not a checkpoint" in result.stderr


def test_check_lists_the_modules_and_counts_adapters_only():
    keys = [f"lora.{key}={value}" for key, value in LORA.items()]
    keys.append("rlax.objective.kl.coefficient=0.1")
    result = rlax("check", DEMO, *keys, "--json")
    assert result.exit_code == 0, result.stderr
    memory = json.loads(result.stdout)["memory_bytes"]["rlax.trainer"]
    # 3 layers of 4 matrices [64, 64] and 3 of [64, 256]; rank 4, float32
    size = 3 * 4 * (4 * 128 + 3 * 320)
    assert memory["copy that is being published, of the adapters"] == 4 * size
    assert memory["reference policy, of the adapters"] == memory["gradients"] == 4 * size
    assert memory["optimizer state (adamw)"] < 9 * size
    assert memory["parameters"] > 10 * size
    plain, said = (" ".join(rlax("check", DEMO, *more).stdout.split()) for more in ((), keys))
    parameters = re.search(r"[\d,]+ parameters", plain)
    assert parameters and f" {parameters[0]}; weights" in said
    assert f"rank 4, alpha 8, {size:,} parameters, in decoder/layers_*/mlp/wi_0 (3), " in said
