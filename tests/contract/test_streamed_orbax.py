"""The files of the weight store can be sent one by one, and are read from the copies."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rlax_orbax.store import OrbaxStore

from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import VersionPart
from rlax_plugin.testing.builders import tensor_specs
from rlax_plugin.weights.streams import check_files, chunks_of, list_files


def arrays() -> dict[str, jnp.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "decoder.layers.mlp.wi.kernel": jnp.asarray(rng.standard_normal((512, 600)), jnp.bfloat16),
        "token_embedder.embedding": jnp.asarray(rng.standard_normal((32, 8)), jnp.float32),
        "router.bias": jnp.zeros(3, jnp.float32),
        "scalar": jnp.asarray(3.5, jnp.float32),
        "empty": jnp.zeros((0, 4), jnp.float32),
    }


@pytest.mark.parametrize("chunk_bytes", [64 << 20, 16 << 10])
def test_a_version_is_read_from_copies_of_its_files(tmp_path: Path, chunk_bytes: int) -> None:
    store, saved = OrbaxStore(deadline_s=60, chunk_bytes=chunk_bytes), arrays()
    there, here = str(tmp_path / "there"), tmp_path / "here"
    store.save(there, saved)
    files = list_files(there)
    check_files(VersionPart("base", there, tensor_specs(saved)), files)
    assert len(files) > (40 if chunk_bytes < 1 << 20 else 5)
    for chunk in chunks_of(there, files, 0, 0):
        path = here / chunk.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(chunk.data)
    loaded = store.load(str(here), saved)
    for name, array in saved.items():
        assert np.asarray(loaded[name]).tobytes() == np.asarray(array).tobytes(), name
    # The store's own checksums hold in the copies as well.
    largest = max((p for p in here.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(WeightsError, match="damaged"):
        store.load(str(here), saved)
