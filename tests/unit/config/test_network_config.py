"""Hosts to listen on and to be reached at: which are accepted, and what a worker is handed."""

from typing import Any

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import is_address
from rlax_plugin.config.addresses import bracketed, host_of, is_host, is_loopback, is_wildcard
from rlax_plugin.config.handing import of_bytes, to_bytes
from rlax_plugin.config.loading import resolved
from rlax_plugin.config.network import Network, Place
from rlax_plugin.config.validation import validate

HOSTS = {
    # host: is one, is loopback, is wildcard
    "127.0.0.1": (True, True, False),
    "127.9.9.9": (True, True, False),
    "localhost": (True, True, False),
    "::1": (True, True, False),
    "[::1]": (True, True, False),
    "0.0.0.0": (True, False, True),
    "::": (True, False, True),
    "10.0.0.7": (True, False, False),
    "fe80::1": (True, False, False),
    "trainer.example.org": (True, False, False),
    "localhost.example.org": (True, False, False),
    "127.0.0.1.example.org": (True, False, False),
    "": (False, False, False),
    "a b": (False, False, False),
    "host:80": (False, False, False),
    "[::1]:80": (False, False, False),
    "unix:/tmp/x": (False, False, False),
    "http://host": (False, False, False),
    "../../etc": (False, False, False),
    "host\n": (False, False, False),
    "x" * 300: (False, False, False),
}


@pytest.mark.parametrize(("host", "expected"), HOSTS.items())
def test_hosts(host: str, expected: tuple[bool, bool, bool]) -> None:
    assert (is_host(host), is_loopback(host), is_wildcard(host)) == expected
    if is_host(host):
        address = f"{bracketed(host)}:80"
        assert is_address(address) and host_of(address) == host.strip("[]")


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        (
            {"host": "0.0.0.0"},
            "advertised_host",
            "must be set, because rlax.network.host = 0.0.0.0",
        ),
        ({"host": "::"}, "advertised_host", "must be set"),
        ({"host": "a b"}, "host", "must be an address of this machine"),
        ({"host": "0.0.0.0", "advertised_host": "::"}, "advertised_host", "by which others reach"),
        ({"advertised_host": "x:80"}, "advertised_host", "without a port"),
        ({"host": "10.0.0.7", "prometheus_port": 0}, "prometheus_token_file", "10.0.0.7 can be"),
        ({"tls": {"certificate": "c"}}, "tls.key", "must be set with rlax.network.tls.certificate"),
        (
            {"tls": {"certificate": "c", "key": "k"}},
            "tls.ca",
            "certificate and rlax.network.tls.key",
        ),
    ],
)
def test_a_network_that_cannot_be_is_one_error(values: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Network, values, "rlax.network")
    assert caught.value.key == f"rlax.network.{key}" and said in str(caught.value)


def test_networks_over_several_machines() -> None:
    found = validate(Network, {"host": "0.0.0.0", "advertised_host": "trainer"}, "rlax.network")
    assert found.place == Place("0.0.0.0", "trainer") and found.place.reached_at == "trainer"
    assert validate(Network, {"host": "::1"}, "rlax.network").place.reached_at == "::1"
    page = {"host": "10.0.0.7", "prometheus_port": 0, "prometheus_token_file": "f"}
    assert validate(Network, page, "rlax.network").prometheus_port == 0


def test_a_worker_is_handed_nothing_of_the_trainers_machine() -> None:
    network = {
        "host": "10.0.0.7",
        "advertised_host": "trainer",
        "port": 4711,
        "serve_clients": True,
        "prometheus_port": 9000,
        "prometheus_token_file": "/secret/place",
        "tls": {"certificate": "/secret/c", "key": "/secret/k", "ca": "/secret/ca"},
    }
    content = {
        "rlax": {
            "prompt_source": {"name": "numbers"},
            "rewards": [{"name": "even"}],
            "network": network,
        }
    }
    text = to_bytes(resolved(content, arguments=frozenset(), source="run.yml"))
    assert b"secret" not in text and b"4711" not in text
    assert of_bytes(text).section.network == Network(serve_clients=True)
