"""Which runs convert no versions, said before a worker that needs them is accepted."""

from types import SimpleNamespace

from rlax_plugin.base.types import SAFETENSORS
from rlax_plugin.run.start.assembly import _Assembly


def unmade(directory: str, path: str | None = None) -> dict[str, str]:
    run = SimpleNamespace(
        _trainer=SimpleNamespace(converts_versions=True),
        _section=SimpleNamespace(weights=SimpleNamespace(path=path)),
        _weights_directory=directory,
    )
    return _Assembly._unmade(run, None)


def test_weights_on_an_object_store_are_not_converted() -> None:
    assert unmade("/data/run/weights") == {}
    assert unmade("gs://b/run/weights")[SAFETENSORS] == (
        "base_output_directory puts them on an object store, gs://b/run/weights, but converted "
        "weights are written to directories only"
    )
    assert unmade("gs://b/w", path="gs://b/w")[SAFETENSORS].startswith("rlax.weights.path puts")
