"""The hosts of a worker: from its own command line, or from the way to the controller."""

from pathlib import Path

import pytest
from command_line import rlax

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.network import Place
from rlax_plugin.config.validation import validate
from rlax_plugin.run.programs.serve import _place as worker_place
from rlax_plugin.run.programs.standalone import _place as server_place

HERE = "127.0.0.1:4711"


@pytest.mark.parametrize(
    ("host", "advertised", "overrides", "expected"),
    [
        ("", "", [], Place("127.0.0.1")),
        ("10.0.0.7", "", [], Place("10.0.0.7")),
        ("", "gateway", [], Place("127.0.0.1", "gateway")),
        ("0.0.0.0", "w", ["rlax.network.host=10.0.0.7"], Place("0.0.0.0", "w")),
        ("", "", ["rlax.network.host=10.0.0.7", "rlax.rollouts.slots=3"], Place("10.0.0.7")),
        ("", "", ["rlax.network={host: '::', advertised_host: w}"], Place("::", "w")),
    ],
)
def test_a_worker_listens_as_its_command_line_says(
    host: str, advertised: str, overrides: list[str], expected: Place
) -> None:
    assert worker_place(host, advertised, overrides, HERE) == expected


@pytest.mark.parametrize(
    ("host", "advertised", "said"),
    [
        ("0.0.0.0", "", "^--advertised-host: must be set, because --host = 0.0.0.0"),
        ("x y", "", "^--host = 'x y': must be an address of this machine"),
        ("", "unix:/x", "^--advertised-host = 'unix:/x': must be the host by which"),
        ("", "a" * 300, "^--advertised-host = 'a+'"),
    ],
)
def test_hosts_that_are_none(host: str, advertised: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        worker_place(host, advertised, [], HERE)


def test_the_port_of_a_worker_is_that_of_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(
        "rlax_plugin.run.programs.serve.serve", lambda *a, **known: given.append(known)
    )
    serve = ["serve", "--controller", "10.0.0.7:4711", "--advertised-host", "gateway"]
    for arguments in (["--port", "4712"], []):
        assert rlax(*serve, *arguments).exit_code == 0
    assert [options["port"] for options in given] == [4712, 0]
    assert {options["advertised_host"] for options in given} == {"gateway"}


def test_a_worker_that_the_controller_could_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlax_plugin.run.programs.serve.own_address", lambda server: "10.0.0.8")
    assert worker_place("", "", [], "10.0.0.7:4711") == Place("10.0.0.8")
    assert worker_place("127.0.0.1", "gateway", [], "10.0.0.7:4711").reached_at == "gateway"
    said = "^--host = '127.0.0.1': cannot be reached by the controller .* give 10.0.0.8, or leave"
    with pytest.raises(ConfigError, match=said):
        worker_place("127.0.0.1", "", [], "10.0.0.7:4711")


def test_a_server_without_a_lock_stays_on_loopback(tmp_path: Path) -> None:
    values = {
        "prompt_source": {"name": "numbers"},
        "rewards": [{"name": "even"}],
        "network": {"host": "0.0.0.0", "advertised_host": "trainer"},
    }
    section = validate(RlaxSection, values, "rlax")
    assert server_place(section, None, "", open_to_all=False) == section.network.place
    assert server_place(section, None, "", open_to_all=True) == Place("127.0.0.1")
    for host in ("0.0.0.0", "10.0.0.7", "::"):
        with pytest.raises(ConfigError, match=f"^--host = '{host}': must be a loopback address"):
            server_place(section, host, "server", open_to_all=True)
