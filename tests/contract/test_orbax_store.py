"""The weight store: whole or not at all, verified, openable by stock Orbax."""

import asyncio
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from orbax import checkpoint as ocp
from rlax_orbax.layout import chunk_shape
from rlax_orbax.store import OrbaxStore

from rlax_plugin.base.errors import DeadlineError, WeightsError

KERNEL = "decoder.layers.self_attention.query.kernel"


@pytest.fixture
def store():
    return OrbaxStore(deadline_s=60)


def weights():
    rng = np.random.default_rng(0)
    return {
        KERNEL: jnp.asarray(rng.standard_normal((6, 4, 5)), jnp.float32),
        "token_embedder.embedding": jnp.asarray(rng.standard_normal((32, 8)), jnp.bfloat16),
        "decoder.norm.scale": jnp.ones(8, jnp.float32),
        "router.bias": jnp.asarray([0, 0, 0], jnp.float32),  # equals the fill value
        "scalar": jnp.asarray(3.5, jnp.float32),
        "mask": jnp.asarray([True, False]),
        "empty": jnp.zeros((0, 4), jnp.float32),
    }


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        a, b = np.asarray(left[name]), np.asarray(right[name])
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), name


def chunk_files(path):
    path = Path(path)  # <variable>/c/<index>/..., a scalar's is <variable>/c
    return sorted(p for p in path.rglob("*") if p.is_file() and "c" in p.relative_to(path).parts)


def test_what_is_saved_is_loaded(store, tmp_path):
    path, arrays = str(tmp_path / "new" / "7"), weights()
    store.save(path, arrays)
    loaded = store.load(path, arrays)
    same(loaded, arrays)
    assert all(isinstance(a, jax.Array) for a in loaded.values())


def test_stock_orbax_opens_a_version(store, tmp_path):
    arrays = {k: v for k, v in weights().items() if k != "empty"}  # Orbax rejects those
    store.save(str(tmp_path / "0"), arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        restored = ocp.PyTreeCheckpointer().restore(
            tmp_path / "0",
            restore_args={
                name: ocp.ArrayRestoreArgs(sharding=a.sharding) for name, a in arrays.items()
            },
        )
    same(restored, arrays)


def test_chunks_are_uncompressed_and_end_with_crc32c(store, tmp_path):
    import google_crc32c

    array = np.arange(64, dtype=np.float32)
    store.save(str(tmp_path / "0"), {"w": array})
    (chunk,) = chunk_files(tmp_path / "0")
    data = chunk.read_bytes()
    assert data[:-4] == array.tobytes()
    assert int.from_bytes(data[-4:], "little") == google_crc32c.value(array.tobytes())


def test_large_shards_are_cut_into_even_chunks(tmp_path):
    assert chunk_shape((1024, 6), 4, 8192) == (256, 6)
    assert chunk_shape((3, 5), 4, 8) == (3, 5)  # no even axis
    assert chunk_shape((), 4, 8) == ()
    store, arrays = OrbaxStore(chunk_bytes=64), {"w": np.arange(256.0, dtype=np.float32)}
    store.save(str(tmp_path / "0"), arrays)
    assert [p.stat().st_size for p in chunk_files(tmp_path / "0")] == [68] * 16
    same(store.load(str(tmp_path / "0"), arrays), arrays)


def test_other_names_shapes_and_dtypes_are_rejected(store, tmp_path):
    path, arrays = str(tmp_path / "0"), weights()
    store.save(path, arrays)
    renamed = {name.replace("query", "qery"): a for name, a in arrays.items()}
    with pytest.raises(WeightsError, match=f"did you mean '{KERNEL}'"):
        store.load(path, renamed)
    with pytest.raises(WeightsError, match=r"unexpected variables: scalar$"):
        store.load(path, {k: v for k, v in arrays.items() if k != "scalar"})
    with pytest.raises(WeightsError, match=r"float32\[6, 4, 5\], expected float32\[6, 20\]"):
        store.load(path, arrays | {KERNEL: arrays[KERNEL].reshape(6, 20)})
    with pytest.raises(WeightsError, match=r"expected bfloat16\[6, 4, 5\]"):
        store.load(path, arrays | {KERNEL: arrays[KERNEL].astype(jnp.bfloat16)})


def test_a_failed_save_leaves_nothing_behind(store, tmp_path):
    # Several arrays, several times: those that are being created when one is rejected are a race.
    arrays = {name: np.ones(3) for name in "abcdefgh"} | {"text": np.array(["text"])}
    for _ in range(20):
        with pytest.raises(WeightsError, match="Unsupported data type"):
            store.save(str(tmp_path / "0"), arrays)
        assert list(tmp_path.iterdir()) == []


def test_a_commit_that_began_in_time_is_waited_for(tmp_path, monkeypatch):
    """Given up, its thread would go on: a rename beside, or after, the removal of its directory."""
    kind = ocp.path.atomicity_defaults.get_default_temporary_path_class(epath.Path(tmp_path / "0"))
    finalize, began, hangs = kind.finalize, [], threading.Event()

    def late(self, *args, **kwargs):
        began.append(self)

        async def commit():  # a rename on a file system that hangs for a while
            await asyncio.to_thread(hangs.wait, 0.2 if len(began) == 1 else 60)
            return await finalize(self, *args, **kwargs)

        return commit()

    def left_s(self):
        return 0.0 if len(began) == saves else 60.0

    monkeypatch.setattr(kind, "finalize", late)
    monkeypatch.setattr("rlax_orbax.time_left.Clock.left_s", left_s)
    saves = 1
    OrbaxStore(grace_s=60).save(str(tmp_path / "0"), {"w": np.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    saves = 2
    same(OrbaxStore().load(str(tmp_path / "0"), {"w": np.zeros(3)}), {"w": np.ones(3)})
    with pytest.raises(DeadlineError, match="writing the weight version"):
        OrbaxStore(grace_s=0.2).save(str(tmp_path / "1"), {"w": np.ones(3)})
    assert len(began) == 2
    hangs.set()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_version_is_invisible_until_it_is_whole(store, tmp_path, monkeypatch):
    """At the moment of Orbax's commit every byte is there, and nothing at the final path."""
    path, arrays = tmp_path / "0", weights()
    seen = []
    finalize = ocp.path.atomicity.AtomicRenameTemporaryPath.finalize

    async def spy(self):
        seen.append((path.exists(), (Path(self.get()) / "_METADATA").exists()))
        same(store.load(str(self.get()), arrays), arrays)
        await finalize(self)

    monkeypatch.setattr(ocp.path.atomicity.AtomicRenameTemporaryPath, "finalize", spy)
    store.save(str(path), arrays)
    assert seen == [(False, True)] and path.exists()


def test_a_leftover_of_a_killed_save_does_no_harm(store, tmp_path):
    leftover = tmp_path / "0.orbax-checkpoint-tmp"
    (leftover / "w").mkdir(parents=True)
    (leftover / "w" / "zarr.json").write_text("half")
    store.save(str(tmp_path / "0"), {"w": jnp.ones(3)})
    assert [p.name for p in tmp_path.iterdir()] == ["0"]


def test_threads_may_share_a_store(store, tmp_path):
    failures = []

    def work(number):
        try:
            arrays = {"w": np.full((64, 64), number, np.float32)}
            for round_ in range(5):
                path = str(tmp_path / f"{number}-{round_}")
                store.save(path, arrays)
                same(store.load(path, arrays), arrays)
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and len(list(tmp_path.iterdir())) == 20
