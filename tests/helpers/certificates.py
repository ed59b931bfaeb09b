"""Certificates of an operator, valid or broken in one way, for tests."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlax_plugin.config.network import Tls
from rlax_plugin.rpc.security import authority
from rlax_plugin.rpc.security.authority import CA, SERVER, SERVER_KEY, make_certificates
from rlax_plugin.rpc.security.certificate import Identity


def tls_of(directory: Path) -> Tls:
    """The files that ``rlax certs make`` has made there."""
    files = {"certificate": SERVER, "key": SERVER_KEY, "ca": CA}
    return Tls(**{key: str(directory / name) for key, name in files.items()})


def made(directory: Path, *names: str, days: int = 30) -> Tls:
    make_certificates(directory, names or ("127.0.0.1", "localhost"), days)
    return tls_of(directory)


def identity_of(directory: Path) -> Identity:
    """Key and certificate as they are, even if no server would be started with them."""
    return Identity((directory / SERVER_KEY).read_text(), (directory / SERVER).read_text())


@contextmanager
def days_ago(days: float) -> Iterator[None]:
    """Has certificates that are made inside begin at that time."""
    then = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    then -= datetime.timedelta(days=days)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "_now", lambda: then)
        yield
