"""The steps of a version that several hosts write, within one process."""

import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from etils import epath
from orbax import checkpoint as ocp
from rlax_orbax.pieces import Writing
from rlax_orbax.store import OrbaxStore

from rlax_plugin.base.errors import DeadlineError, WeightsError, WeightsUnwritableError

ARRAYS = {
    "kernel": jnp.arange(96, dtype=jnp.float32).reshape(8, 12),
    "empty": jnp.zeros((0, 4), jnp.bfloat16),
    "scalar": jnp.asarray(2.5, jnp.float32),
}
COUNT = 9  # kernel: 8 chunks of 1 x 12 or 2 x 6


@pytest.fixture(params=["rename", "commit file"])
def store(request, monkeypatch):
    """A store on a file system, and one that writes in place, as on an object store."""
    if request.param == "commit file":
        in_place = ocp.path.atomicity.CommitFileTemporaryPath
        defaults = ocp.path.atomicity_defaults
        monkeypatch.setattr(defaults, "get_default_temporary_path_class", lambda path: in_place)
    return OrbaxStore(deadline_s=60, chunk_bytes=48)


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def committed(path):
    return (path / "commit_success.txt").exists() and (path / "_METADATA").exists()


def test_a_version_is_visible_once_it_is_committed(store, tmp_path):
    assert store.shared_writing
    path = tmp_path / "0"
    directory = store.begin(str(path), ARRAYS)
    assert store.write(directory, ARRAYS) == COUNT
    with pytest.raises(WeightsError, match="0"):
        store.load(str(path), ARRAYS)
    assert not committed(path)
    for wrong in (0, COUNT - 1, COUNT + 1, 2 * COUNT):
        with pytest.raises(WeightsError, match=f": {wrong} of 9 chunks were written$"):
            store.commit(str(path), directory, ARRAYS, wrong)
        assert not committed(path)
    other = str(tmp_path / "1")
    with pytest.raises(WeightsError, match=f"/1: its directory is not {directory}"):
        store.commit(other, directory, ARRAYS, COUNT)
    store.commit(str(path), directory, ARRAYS, COUNT)
    assert committed(path) and left(tmp_path) == ["0"]
    loaded = store.load(str(path), ARRAYS)
    assert all((np.asarray(loaded[n]) == np.asarray(a)).all() for n, a in ARRAYS.items())


def test_the_files_are_those_of_a_save(store, tmp_path):
    saved, path = tmp_path / "saved", tmp_path / "together"
    store.save(str(saved), ARRAYS)
    directory = store.begin(str(path), ARRAYS)
    store.commit(str(path), directory, ARRAYS, store.write(directory, ARRAYS))

    def files(version):
        found = {p.relative_to(version): p.read_bytes() for p in version.rglob("*") if p.is_file()}
        return {name: data for name, data in found.items() if name.name != "commit_success.txt"}

    assert files(saved) == files(path) and len(files(path)) == 1 + 3 + COUNT


def test_a_directory_that_is_not_there_is_not_made(store, tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(WeightsUnwritableError, match="NOT_FOUND"):
        store.write(str(gone), ARRAYS)
    assert left(tmp_path) == []
    directory = store.begin(str(tmp_path / "0"), ARRAYS)
    store.abandon(str(tmp_path / "0"))
    with pytest.raises(WeightsUnwritableError, match="the directory was removed"):
        store.commit(str(tmp_path / "0"), directory, ARRAYS, COUNT)
    assert left(tmp_path) == []
    store.abandon(str(tmp_path / "0"))


def test_a_directory_of_other_layouts_is_rejected(store, tmp_path):
    """Hosts that disagree about the chunks would write over each other's."""
    directory = store.begin(str(tmp_path / "0"), ARRAYS)
    with pytest.raises(WeightsError, match="chunk_shape"):
        OrbaxStore(chunk_bytes=96).write(directory, ARRAYS)
    with pytest.raises(WeightsError, match="float16"):
        store.write(directory, ARRAYS | {"kernel": ARRAYS["kernel"].astype(jnp.float16)})


def test_a_host_that_writes_into_an_abandoned_directory_leaves_nothing(
    store, tmp_path, monkeypatch
):
    """TensorStore makes missing directories: host 0 has removed it, and does not look again."""
    path = str(tmp_path / "0")
    opened = Writing.wait_until_open

    def abandoned(self):
        opened(self)
        store.abandon(path)

    directory = store.begin(path, ARRAYS)
    monkeypatch.setattr(Writing, "wait_until_open", abandoned)
    with pytest.raises(WeightsUnwritableError, match="the directory was removed"):
        store.write(directory, ARRAYS)
    assert left(tmp_path) == []


def test_a_failed_begin_leaves_nothing(store, tmp_path):
    rejected = ARRAYS | {"text": np.array(["text"])}
    with pytest.raises(WeightsError, match="Unsupported data type"):
        store.begin(str(tmp_path / "0"), rejected)
    assert left(tmp_path) == []
    store.save(str(tmp_path / "0"), ARRAYS)
    with pytest.raises(WeightsError, match="exists"):
        store.begin(str(tmp_path / "0"), ARRAYS)
    assert committed(tmp_path / "0")
    (tmp_path / "file").touch()
    with pytest.raises(WeightsUnwritableError, match="cannot write"):
        store.begin(str(tmp_path / "file" / "0"), ARRAYS)


def test_remains_that_cannot_be_removed_are_an_error(tmp_path, monkeypatch):
    store = OrbaxStore()
    store.begin(str(tmp_path / "0"), ARRAYS)

    def rejects(self, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(epath.Path(tmp_path)), "rmtree", rejects)
    with pytest.raises(WeightsError, match=r"cannot delete the remains of .*Permission denied"):
        store.abandon(str(tmp_path / "0"))


def test_deadlines_of_the_steps_hold(tmp_path, monkeypatch):
    large = {"w": np.ones(1 << 28, np.uint8)}
    directory = OrbaxStore().begin(str(tmp_path / "0"), large)
    with monkeypatch.context() as patch:  # the arrays are open in time, and not written
        patch.setattr("rlax_orbax.time_left.Clock.left_s", lambda self: 0 if self.nbytes else 60)
        with pytest.raises(DeadlineError, match=r"writing .*rlax\.deadlines\.weights_s"):
            OrbaxStore().write(directory, large)
    promise, never = ts.Promise.new()
    monkeypatch.setattr(Writing, "open", lambda self, **_: self._opened.update(w=never))
    with pytest.raises(DeadlineError, match=r"rlax\.deadlines\.weights_s"):
        OrbaxStore(deadline_s=0.1, grace_s=0.1).begin(str(tmp_path / "1"), large)
    promise.set_result(None)  # it is kept until here
