"""Another host finds host 0, however stale the files of an earlier start are, or says why not."""

import socket
import threading

import pytest
from led import HASH, TOKEN, led_by_host_0
from sections import section_with

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Descent, HostPlace
from rlax_plugin.run.hosts import leading
from rlax_plugin.run.start import descent, follower
from rlax_plugin.run.start.leading import record_start
from rlax_plugin.run.state.endpoints import Endpoints, write_endpoints


@pytest.fixture
def led(tmp_path, monkeypatch):
    monkeypatch.setattr(leading, "POLL_S", 0.2)
    TOKEN.write(tmp_path / "host-token.json")
    with led_by_host_0() as found:
        record_start(RunFiles(tmp_path), found.leader)
        yield found


class Config:
    """A config that is hashed only (fake)."""

    section = section_with(deadlines={"startup_s": 20, "host_s": 60, "rpc_s": 2})

    def __init__(self, **content):
        self.content = content


def seeker(directory, led, origin=None):
    place = HostPlace(1, 2, led.leader.place.coordinator)
    files = RunFiles(directory)
    found = follower.Seeker(Config(), directory, place, shared=files, origin=origin)
    found._hash = HASH
    return found


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_the_address_of_an_earlier_start_is_given_up_for_the_present_one(led, tmp_path):
    """Not only after host_s, which is 60 s here."""
    stale = free_address()
    write_endpoints(tmp_path, Endpoints(stale, stale))
    tried = []

    class Watched(follower.HostZero):
        def join(self, *given):
            tried.append(self.address)
            try:
                return super().join(*given)
            finally:  # host 0 comes once the stale address was tried
                write_endpoints(tmp_path, Endpoints(led.address, led.address))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "HostZero", Watched)
        seeker(tmp_path, led).join(led.thread).close()
    assert tried == [stale, led.address]
    assert led.leader.missing == []


def test_a_host_whose_first_reply_was_lost_still_joins(led, tmp_path):
    write_endpoints(tmp_path, Endpoints(led.address, led.address))
    one = seeker(tmp_path, led)
    one._tried(led.thread).close()
    one.join(led.thread).close()
    with pytest.raises(ConfigError, match="another process has joined as host 1"):
        seeker(tmp_path, led).join(led.thread)


@pytest.mark.parametrize(
    ("record", "origin", "key", "reason"),
    [
        (None, Descent("/runs/a", 4, "3"), "--from", "host 0 starts from weights of its own"),
        (Descent("/runs/a", 4, "3"), None, "--from", "host 0 starts from /runs/a@4"),
        (Descent("/runs/a", 4, "3"), Descent("/runs/a", 8, "7"), "--from", "the same on all hosts"),
        ("no start", None, "base_output_directory", "was not written by host 0"),
    ],
)
def test_host_0_hears_of_a_host_that_has_joined_and_cannot_go_on(
    led, tmp_path, record, origin, key, reason
):
    files, told = RunFiles(tmp_path), []
    write_endpoints(tmp_path, Endpoints(led.address, led.address))
    if record == "no start":
        files.put_json("hosts.json", {"start": "another"})
    else:
        descent.record(files, record)
    heard = threading.Event()
    led.leader.on_stop = lambda host, failure: (told.append((host, failure)), heard.set())
    with pytest.raises(ConfigError, match=reason) as raised:
        seeker(tmp_path, led, origin).join(led.thread)
    assert raised.value.key == key
    assert heard.wait(60) and told[0][0] == 1 and reason in told[0][1]
