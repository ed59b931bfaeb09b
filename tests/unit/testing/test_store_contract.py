"""``check_store`` finds a store that takes an outage for damage, or damage for an outage."""

import errno
import os
import shutil

import pytest

from rlax_plugin.base.errors import ContractError, RlaxError, WeightsError, WeightsUnreadableError
from rlax_plugin.testing import check_store
from rlax_plugin.testing.builders import make_version
from rlax_plugin.testing.store import NpzStore
from rlax_plugin.weights.verification import read_weights


class Raises(NpzStore):
    """Raises ``kind`` for everything that goes wrong in ``load``."""

    def __init__(self, kind: type[Exception]):
        self._kind = kind

    def load(self, path, like):
        try:
            return super().load(path, like)
        except RlaxError as error:
            raise self._kind(str(error)) from error


class Shared(NpzStore):
    """One host writes, and ``commit`` may count its chunks."""

    shared_writing = True

    def __init__(self, counts: bool):
        self._counts = counts

    def begin(self, path, arrays):
        return f"{path}.begun"

    def write(self, directory, arrays):
        super().save(directory, arrays)
        return len(arrays)

    def commit(self, path, directory, arrays, chunks):
        if self._counts and chunks != len(arrays):
            raise WeightsError(f"{chunks} of {len(arrays)} chunks were written")
        os.rename(directory, path)

    def abandon(self, path):
        shutil.rmtree(f"{path}.begun", ignore_errors=True)


class LetsPass(NpzStore):
    """Leaves the operating system's errors as they are."""

    def load(self, path, like):
        try:
            return super().load(path, like)
        except WeightsUnreadableError as error:
            raise OSError(str(error)) from error


@pytest.mark.parametrize("store", [NpzStore(), LetsPass()])
def test_a_store_that_tells_them_apart_passes(store):
    assert "wrong bytes are found, and outages raise another error" in check_store(store)


def test_hosts_must_have_written_all_chunks_before_a_version_is_visible():
    rule = "hosts write a version together, which is visible once it has all chunks"
    assert rule in check_store(Shared(counts=True))
    with pytest.raises(ContractError) as caught:
        check_store(Shared(counts=False))
    (finding,) = caught.value.findings
    assert rule in str(finding) and "commit of more chunks" in str(finding)


def test_an_outage_must_not_be_damage():
    with pytest.raises(ContractError) as caught:
        check_store(Raises(WeightsError))
    assert len(caught.value.findings) == 2
    text = str(caught.value)
    assert "where the operating system denied access to weights.npz" in text
    assert "load of what was not saved raised WeightsError, which means wrong bytes" in text


def test_damage_must_not_be_an_outage():
    with pytest.raises(ContractError) as caught:
        check_store(Raises(WeightsUnreadableError))
    (finding,) = caught.value.findings
    assert "one bit flipped raised a WeightsUnreadableError" in str(finding)
    assert "raise a plain WeightsError only for bytes that were read" in finding.mend


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (PermissionError(errno.EACCES, "denied"), WeightsUnreadableError),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), WeightsUnreadableError),
        (RuntimeError("of a client library"), WeightsUnreadableError),
        (WeightsUnreadableError("away"), WeightsUnreadableError),
        (WeightsError("crc32c"), WeightsError),
    ],
)
def test_whatever_a_store_raises_that_is_no_error_of_ours_is_an_outage(raised, kind):
    class Broken(NpzStore):
        def load(self, path, like):
            raise raised

    version = make_version(3, "/weights/3")
    with pytest.raises(WeightsError) as caught:
        read_weights(version, Broken(), {}, fingerprint=None)
    assert type(caught.value) is kind and str(raised) in str(caught.value)
