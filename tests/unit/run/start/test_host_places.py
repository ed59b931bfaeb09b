"""Each wrong combination of the options on hosts is one error that names the option."""

import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import HostPlace
from rlax_plugin.run.start.places import Places

AT = "127.0.0.1:4713"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, None),
        ({"hosts": 1}, HostPlace(0, 1)),
        ({"hosts": 2}, None),
        ({"hosts": 2, "host": 0, "coordinator": AT}, HostPlace(0, 2, AT)),
        ({"hosts": 3, "host": 2, "coordinator": AT}, HostPlace(2, 3, AT)),
        ({"hosts": 2, "host": 0, "coordinator": "[::1]:80"}, HostPlace(0, 2, "[::1]:80")),
        (
            {"hosts": 2, "host": 1, "coordinator": "a.example:80", "controller": "a.example:4711"},
            HostPlace(1, 2, "a.example:80"),
        ),
    ],
)
def test_the_place_that_options_describe(given, place):
    assert Places(**given).place() == place


@pytest.mark.parametrize(
    ("given", "option", "reason"),
    [
        ({"coordinator": AT}, "--coordinator", "needs --host"),
        ({"hosts": 2, "controller": AT}, "--controller", "needs --host"),
        ({"hosts": 2, "token_file": "x"}, "--token-file", "needs --host"),
        ({"host": 0, "coordinator": AT}, "--host", "needs --hosts"),
        ({"hosts": 1, "host": 0, "coordinator": AT}, "--host", "needs --hosts"),
        ({"hosts": 2, "host": 2, "coordinator": AT}, "--host", "from 0 to 1"),
        ({"hosts": 2, "host": 1}, "--coordinator", "the same for all hosts"),
        ({"hosts": 2, "host": 1, "coordinator": "4713"}, "--coordinator", "HOST:PORT"),
        (
            {"hosts": 2, "host": 0, "coordinator": AT, "controller": AT},
            "--controller",
            "not host 0",
        ),
        (
            {"hosts": 2, "host": 0, "coordinator": AT, "token_file": "x"},
            "--token-file",
            "not host 0",
        ),
        ({"hosts": 2, "host": 1, "coordinator": "a.example:80"}, "--controller", "must be given"),
        (
            {"hosts": 2, "host": 1, "coordinator": AT, "controller": "one.example"},
            "--controller",
            "HOST:PORT",
        ),
    ],
)
def test_options_that_contradict_each_other(given, option, reason):
    with pytest.raises(ConfigError, match=reason) as raised:
        Places(**given).place()
    assert raised.value.key == option
