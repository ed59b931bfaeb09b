"""The operator's certificates: made, checked before anything starts, and followed while it runs."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import certificates
import pytest
from certificates import days_ago, made, tls_of
from cryptography import x509

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.network import Tls
from rlax_plugin.rpc.security.authority import (
    CA,
    CA_KEY,
    SERVER,
    SERVER_KEY,
    make_certificates,
    names_in,
)
from rlax_plugin.rpc.security.operator_certificate import (
    OperatorIdentity,
    authority_of,
    read_authority,
)

HOST = "trainer.example.org"


def loaded(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_certs_makes_an_authority_and_a_server_certificate(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        found = make_certificates(tmp_path / "certs", (HOST, "10.0.0.7", "::1"), 30)
    finally:
        os.umask(before)
    folder = tmp_path / "certs"
    assert found.new_authority and found.names == (HOST, "10.0.0.7", "::1")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {CA: 0o644, CA_KEY: 0o600, SERVER: 0o644, SERVER_KEY: 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 & ~umask
    ca, server = loaded(folder / CA), loaded(folder / SERVER)
    assert names_in(server) == (HOST, "10.0.0.7", "::1")
    limits = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical and limits.value.ca and limits.value.path_length == 0
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign and not usage.digital_signature
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    server.verify_directly_issued_by(ca)
    assert (server.not_valid_after_utc - server.not_valid_before_utc).days == 30


def test_certs_again_renews_the_server_certificate_with_the_same_authority(tmp_path: Path) -> None:
    made(tmp_path, HOST)
    ca, first = (tmp_path / CA).read_bytes(), loaded(tmp_path / SERVER)
    again = make_certificates(tmp_path, (), 60)
    second = loaded(tmp_path / SERVER)
    assert not again.new_authority and (tmp_path / CA).read_bytes() == ca
    assert names_in(second) == (HOST,) == again.names
    assert second.serial_number != first.serial_number
    assert second.not_valid_after_utc > first.not_valid_after_utc


@pytest.mark.parametrize(
    ("names", "days", "said"),
    [
        ((), 30, r"^--name: must be given"),
        (("host:80",), 30, "must be a name"),
        (("*",), 30, "must be a name"),
        (("x" * 300,), 30, "must be a name"),
        ((HOST,) * 65, 30, "at most 64 times"),
        ((HOST,), 4000, r"^--days = 4000: would end after the authority"),
    ],
)
def test_names_and_days_that_no_certificate_can_have(
    names: tuple[str, ...], days: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_certificates(tmp_path, names, days)
    assert not (tmp_path / SERVER).exists()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda at: (at / CA).unlink(), "ca.pem is missing"),
        (lambda at: (at / CA_KEY).unlink(), "ca-key.pem is missing"),
        (lambda at: (at / CA_KEY).chmod(0o640), "ca-key.pem has mode 0640"),
        (lambda at: (at / CA_KEY).write_text("x"), "ca-key.pem cannot be read"),
        (lambda at: (at / CA).write_bytes((at / SERVER).read_bytes()), "does not belong to"),
        (lambda at: (at / CA).write_text("x"), "ca.pem cannot be read"),
    ],
)
def test_a_damaged_authority_signs_nothing(
    harm: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    made(tmp_path, HOST)
    before = (tmp_path / SERVER).read_bytes()
    harm(tmp_path)
    now = (tmp_path / SERVER).read_bytes()
    with pytest.raises(ConfigError, match=said):
        make_certificates(tmp_path, (HOST,), 30)
    assert (tmp_path / SERVER).read_bytes() == now == before


def open_key(at: Path) -> None:
    (at / SERVER_KEY).chmod(0o644)


def other_key(at: Path) -> None:
    (at / SERVER_KEY).write_bytes((at / CA_KEY).read_bytes())


def expired(at: Path) -> None:
    with days_ago(10):
        make_certificates(at, (HOST,), 2)


def of_the_future(at: Path) -> None:
    with days_ago(-2):
        make_certificates(at, (HOST,), 30)


def of_another_name(at: Path) -> None:
    make_certificates(at, ("other.example.org",), 30)


def foreign(at: Path) -> None:
    made(at / "other", HOST)
    for name in (SERVER, SERVER_KEY):
        (at / "other" / name).replace(at / name)


def cut(at: Path) -> None:
    text = (at / SERVER).read_bytes()
    (at / SERVER).write_bytes(text[: len(text) // 2])


def huge(at: Path) -> None:
    (at / SERVER).write_text("-----BEGIN CERTIFICATE-----\n" * 10_000)


def pipe(at: Path) -> None:
    (at / SERVER).unlink()
    os.mkfifo(at / SERVER)


def missing(at: Path) -> None:
    (at / SERVER_KEY).unlink()


def writable_ca(at: Path) -> None:
    (at / CA).chmod(0o666)


def key_as_ca(at: Path) -> None:
    (at / CA).write_bytes((at / CA).read_bytes() + (at / CA_KEY).read_bytes())


def server_as_ca(at: Path) -> None:
    (at / CA).write_bytes((at / SERVER).read_bytes())


def endless_chain(at: Path) -> None:
    (at / SERVER).write_bytes((at / SERVER).read_bytes() * 9)


BROKEN = [
    (open_key, "key", "has mode 0644, so others may know what is in it: run chmod 600"),
    (other_key, "key", "its key is not that of its certificate"),
    (missing, "key", "cannot be read: No such file"),
    (expired, "certificate", "has expired"),
    (of_the_future, "certificate", "is not valid yet"),
    (of_another_name, "certificate", f"is not for {HOST}"),
    (foreign, "certificate", "is not signed by the expected authority"),
    (cut, "certificate", "holds no certificate in PEM"),
    (huge, "certificate", "has more than 65536 bytes"),
    (pipe, "certificate", "is no ordinary file"),
    (endless_chain, "certificate", "holds more than 8 certificates"),
    (writable_ca, "ca", "has mode 0666, so every user may write it"),
    (key_as_ca, "ca", "holds a private key, which clients must not get"),
    (server_as_ca, "ca", "holds a certificate that is not an authority's"),
]


@pytest.mark.parametrize(
    ("harm", "key", "said"), BROKEN, ids=lambda one: getattr(one, "__name__", "")
)
def test_files_that_cannot_be_used_are_one_error(
    harm: Callable[[Path], None], key: str, said: str, tmp_path: Path
) -> None:
    made(tmp_path, HOST)
    OperatorIdentity(tls_of(tmp_path), [HOST])
    harm(tmp_path)
    with pytest.raises(ConfigError) as caught:
        OperatorIdentity(tls_of(tmp_path), [HOST])
    assert caught.value.key == f"rlax.network.tls.{key}" and said in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)


def test_a_name_of_a_certificate_may_be_an_address(tmp_path: Path) -> None:
    OperatorIdentity(made(tmp_path, "::1"), ["[::1]"])


def test_new_files_are_used_once_both_are_there(tmp_path, caplog) -> None:
    tls = made(tmp_path, HOST)
    identity = OperatorIdentity(tls, [HOST])
    first = identity.newest()
    assert identity.newest() is first
    made(tmp_path / "new", HOST)  # of another authority
    for name in (SERVER, SERVER_KEY):
        (tmp_path / name).write_bytes((tmp_path / "new" / name).read_bytes())
        assert identity.newest() is first
    assert caplog.text.count("the certificate before stays in use") == 2
    assert "is not signed by the expected authority" in caplog.text
    make_certificates(tmp_path, (HOST,), 60)
    second = identity.newest()
    assert second == certificates.identity_of(tmp_path) != first
    (tmp_path / SERVER).write_text("half")
    assert identity.newest() is second is identity.newest()
    assert caplog.text.count("holds no certificate in PEM") == 1
    (tmp_path / SERVER).unlink()
    assert identity.newest() is second


@pytest.mark.parametrize(("days", "said"), [(30, None), (6, "expires at"), (8, None)])
def test_a_week_before_its_end_a_warning_comes(days: int, said: str | None, tmp_path: Path) -> None:
    line = OperatorIdentity(made(tmp_path, HOST, days=days), [HOST]).warning()
    assert line is None if said is None else line is not None and said in line


def test_an_authority_is_optional_and_checked(tmp_path: Path) -> None:
    assert authority_of(Tls()) == ""
    tls = made(tmp_path, HOST)
    assert authority_of(tls) == (tmp_path / CA).read_text()
    with pytest.raises(ConfigError, match=r"^--ca = .*: cannot be read"):
        read_authority("--ca", tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(ConfigError, match="must hold a certificate in PEM"):
        read_authority("--ca", tmp_path / "empty")
