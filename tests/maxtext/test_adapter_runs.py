"""Runs of adapters by the trainer: versions, reference, --from, rlax eval and export."""

import json
import weakref
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_models
from safetensors.numpy import load_file
from test_adapters import LORA
from test_trainer_plugin import FakePort, saving, trainer
from tiny_loop import TINY, VOCAB, Recorder, train

from maxtext_overrides.adapters import is_adapter
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Descent
from rlax_plugin.config.loading import resolve
from rlax_plugin.tools.commands.export import export, find_source


class PartsPort(FakePort):
    """Keeps copies of the base and the adapters of each version; of the base's arrays, whether
    they live on at each batch."""

    def next_batch(self, step):
        self.alive = [*getattr(self, "alive", []), [a() is not None for a in self.handed_over]]
        return super().next_batch(step)

    def publish(self, step, arrays, canary, parts):
        del canary
        base = None if arrays is None else jax.device_get(dict(arrays))
        if arrays is not None:
            self.handed_over = [weakref.ref(array) for array in arrays.values()]
        self.weights[step] = base, {k: jax.device_get(dict(a)) for k, a in parts.items()}
        self.calls.append(("publish", step))


def same(arrays, others):
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps of adapters on a base that was trained for one; paths are relative."""
    directory = tmp_path_factory.mktemp("adapters")
    saved = {"enable_checkpointing": True, "recorder": Recorder(stop_after=1)}
    base = train(directory, run_name="base", **saved).weights[1]
    argv = (
        *saving(directory),
        "load_parameters_path=base/checkpoints/0/items",
        f"lora={json.dumps(LORA)}",
        "learning_rate=0.01",
        "rlax.objective.kl.coefficient=0.1",
        "normalize_embedding_logits=false",
        f"tokenizer_path={tiny_models.write_tokenizer(VOCAB, directory / 'tokenizer')}",
    )
    port = PartsPort(stop_after=2, canary=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        trainer(argv).run(port)
    files = RunFiles(directory / "tiny")
    files.put("config.yml", resolve(TINY, argv[1:]).to_yaml())
    yield SimpleNamespace(directory=directory, argv=argv, port=port, base=base)


@pytest.fixture(autouse=True)
def inside(run, monkeypatch):
    monkeypatch.chdir(run.directory)


def test_the_base_is_published_once_and_adapters_with_every_version(run):
    first, *rest = (base for base, _ in run.port.weights.values())
    same(first, run.base)
    assert rest == [None, None]
    for _, parts in run.port.weights.values():
        assert parts.keys() == {"adapter"} and all(map(is_adapter, parts["adapter"]))


def test_no_copy_of_the_base_is_left_when_the_first_step_begins(run):
    base, _ = run.port.weights[0]
    assert run.port.alive == [[False] * len(base)] * 2


def test_the_reference_keeps_the_adapters_that_training_started_from(run):
    divergence = [float(run.port.metrics[n]["objective/reference_kl_k3"]) for n in (1, 2)]
    assert abs(divergence[0]) < 1e-6 < divergence[1] / 10


def test_a_checkpoint_is_evaluated_and_trained_on_with_its_base(run, tmp_path):
    read, child = (PartsPort(stop_after=stop, canary=False) for stop in (0, 1))
    trainer(run.argv, tmp_path / "scratch").publish_checkpoint(read, "1")
    begun = trainer((*run.argv, "run_name=child"))
    assert begun.start_from(Descent(str(run.directory / "tiny"), 2, "1")) is None
    begun.run(child)
    _, trained = run.port.weights[2]
    for base, parts in (read.weights[2], child.weights[0]):
        same(base, run.base)
        same(parts["adapter"], trained["adapter"])


def exported(run, out, *argv):
    source = find_source(str(run.directory / "tiny/checkpoints/1"), None, argv)
    export(source, str(out), dtype="float32", most_bytes=2**30)
    return SafetensorsDirectory(out).read("model.layers.1.mlp.down_proj.weight")


def test_an_export_adds_the_adapters_with_their_own_rank(run, tmp_path):
    found = exported(run, tmp_path / "out", "lora.lora_rank=16")
    name, adapter = "decoder.layers.mlp.wo.kernel", run.port.weights[2][1]["adapter"]
    a_ir, b_ro = (adapter[f"{name}_lora_{half}"][:, 1] for half in "ab")
    np.testing.assert_allclose(found.T, run.base[name][:, 1] + 2 * a_ir @ b_ro, atol=1e-6)
    assert np.abs(a_ir @ b_ro).max() > 1e-4


def test_an_export_for_peft_has_the_adapters_alone(run, tmp_path):
    source = find_source(str(run.directory / "tiny/checkpoints/1"), None, ())
    _, exported = export(
        source, str(tmp_path / "out"), dtype="float32", most_bytes=2**30, peft=True
    )
    assert [note.partition(":")[0] for note in exported.notes] == [
        "base_model_name_or_path is null"
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    found = load_file(tmp_path / "out/adapter_model.safetensors")
    adapter = run.port.weights[2][1]["adapter"]
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_{}.weight"
    a_ir, b_ro = (
        adapter[f"decoder.layers.self_attention.query.kernel_lora_{half}"][:, 1] for half in "ab"
    )
    np.testing.assert_array_equal(found[name.format("A")], a_ir.T)
    np.testing.assert_array_equal(found[name.format("B")], 4 * b_ro.T)  # heads are 16 wide
    assert len(found) == 2 * 2 * 7


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (
            "lora.lora_alpha=16",
            r"^lora\.lora_alpha = 16\.0: must be 8\.0, with which the adapters in",
        ),
        (
            "load_parameters_path=other/checkpoints/0/items",
            r"^load_parameters_path = .*other/.*: is not the base of the adapters in .*/tiny, ",
        ),
    ],
)
def test_an_export_with_another_base_or_alpha_is_rejected(run, tmp_path, override, error):
    if "other" in override:
        saved = {"enable_checkpointing": True, "recorder": Recorder(stop_after=1)}
        train(run.directory, run_name="other", init_weights_seed=3, **saved)
    with pytest.raises(ConfigError, match=error):
        exported(run, tmp_path / "out", override)
    assert not (tmp_path / "out").exists()
