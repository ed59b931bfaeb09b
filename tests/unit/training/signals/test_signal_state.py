"""The state of signals beside checkpoints: whole or an error, and gone with its checkpoint."""

import numpy as np
import object_store  # noqa: F401  it makes objects:// known
import pytest

from rlax_plugin.api import BatchSignal, RunFiles, SignalChain, SignalState, TrainingError
from rlax_plugin.testing import make_arrays, make_batch

BATCH = make_arrays(make_batch())
FILE = "signals/00000005/counter/state.npz"


class Counter(BatchSignal):
    """Counts what it learnt from."""

    def __init__(self):
        self.seen = np.zeros(2, np.uint64)

    def learn(self, model, step, batch):
        self.seen = self.seen + np.uint64([1, step])

    def save(self, step, state):
        state.put({"seen": self.seen})

    def restore(self, step, state):
        self.seen = state.get()["seen"]


def chain_of(files, signal, checkpoints=()):
    return SignalChain({"counter": signal}, files, None, checkpoints=lambda: checkpoints)


@pytest.fixture(params=["disk", "objects"])
def files(request, tmp_path):
    return RunFiles(str(tmp_path) if request.param == "disk" else f"objects:/{tmp_path}")


def saved(files, step=5):
    counter = Counter()
    chain = chain_of(files, counter)
    chain.start(None, 0)
    for trained in range(1, step + 1):
        chain.complete(None, trained, BATCH)
    chain.save(step)
    return counter


def test_a_resumed_signal_goes_on_from_what_it_saved(files):
    first, second = saved(files), Counter()
    chain = chain_of(files, second)
    chain.start(None, 5)
    np.testing.assert_array_equal(second.seen, [5, 15])
    assert second.seen.dtype == np.uint64
    chain.complete(None, 6, BATCH)
    np.testing.assert_array_equal(second.seen, [6, 21])
    np.testing.assert_array_equal(first.seen, [5, 15])


def test_a_checkpoint_without_its_state_is_one_error_that_names_the_file(files):
    saved(files)
    with pytest.raises(TrainingError) as missing:
        chain_of(files, Counter()).start(None, 6)
    text = str(missing.value)
    assert files.location(FILE.replace("5", "6")) + " is missing" in text
    assert "the trainer resumed at step 6" in text and "signal 'counter'" in text

    data = files.get(FILE)
    for damaged in (data[:-5], data[:40] + b"x" + data[41:], b""):
        files.put(FILE, damaged)
        with pytest.raises(TrainingError, match=r"is damaged: its \d+ bytes have another crc32c"):
            chain_of(files, Counter()).start(None, 5)


def test_states_go_with_their_checkpoints_and_not_before_the_next_one_is_there(files):
    checkpoints: set[int] = set()
    chain = chain_of(files, Counter(), checkpoints)

    def left():
        return [int(name) for name in files.names("signals")]

    chain.save(2)
    assert left() == [2]  # its checkpoint is being written
    checkpoints.add(2)
    chain.save(4)
    chain.save(6)  # a trainer may be two ahead of what it finds on the disk
    assert left() == [2, 4, 6]
    checkpoints |= {4, 6}
    checkpoints.remove(2)
    chain.save(8)
    assert left() == [4, 6, 8]
    # A later process finds the checkpoint of 6 unreadable and goes on from 4; 8 was not committed.
    checkpoints.remove(6)
    again = chain_of(files, Counter(), checkpoints)
    again.start(None, 4)
    again.save(5)
    assert left() == [4, 5, 6, 8]
    checkpoints.add(10)  # of the process before
    again.save(7)  # while the checkpoint of 5 is still being written
    assert left() == [4, 5, 7]


@pytest.mark.parametrize("name", ["../../../other", "a/b", "", "."])
def test_a_state_lies_in_the_folder_of_its_signal(tmp_path, name):
    with pytest.raises(ValueError, match=r"a state of signal 'mine' is named"):
        SignalState(RunFiles(tmp_path), 3, "mine").put({"a": np.zeros(1)}, name)
    assert not list(tmp_path.rglob("*.npz"))
