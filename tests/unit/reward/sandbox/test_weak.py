"""A machine that lacks layers: refused by name, and with ``allow_weak`` the others still hold."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from sandbox_driver import Driver

from rlax_plugin.reward.sandbox.entering import NAMESPACES
from rlax_plugin.reward.sandbox.layers import NAMES, Offer, offered
from rlax_plugin.reward.sandbox.sandbox import Sandbox, SandboxError

INSIDE = """
import os, socket, time
def tried(what):
    try:
        return repr(what())
    except Exception as error:
        return type(error).__name__
open("left", "w").close()
print(tried(lambda: open("/etc/passwd").read()))
print(tried(lambda: socket.socket(socket.AF_INET)))
print(tried(lambda: os.execv("/bin/sh", ["sh"])))
print(tried(lambda: os.kill(os.getppid(), 9)))
print(os.getcwd())
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
"""


@pytest.mark.parametrize(
    "lacks", [("user namespace",), NAMESPACES, (*NAMESPACES, "process limit")], ids=len
)
def test_the_layers_that_there_are_still_hold(driver: Driver, lacks: tuple[str, ...]) -> None:
    if driver.user == "ordinary":
        lacks = (*NAMESPACES, "capability drop", "process limit")  # none without the first
    elif not all(one.stat().st_mode & 1 for one in Path(sys.base_prefix).resolve().parents):
        # Another user cannot use a Python in root's home, unless it is mounted elsewhere.
        lacks = tuple(name for name in lacks if name != "mount namespace")
    ended = driver.run(INSIDE, lacks=lacks)
    assert ended.right, ended
    *said, place = ended.stdout.decode().splitlines()
    assert said[0] in ("PermissionError", "FileNotFoundError")
    assert said[1:3] == ["PermissionError"] * 2
    assert said[3] in ("PermissionError", "None")  # the server of a pid namespace ignores it
    assert place == "/tmp" or not os.path.exists(place)
    assert len(driver.processes()) == 2
    assert driver.run("import os\nprint(os.listdir())", lacks=lacks).stdout == b"[]\n"


def test_a_lacking_machine_is_refused_by_name() -> None:
    lacking = Offer({"seccomp": ""}, {"landlock": "no such call", "pid namespace": "not permitted"})
    with (
        patch("rlax_plugin.reward.sandbox.sandbox.offered", return_value=lacking),
        pytest.raises(SandboxError, match=r"landlock \(no such call\); pid namespace \(not perm"),
    ):
        Sandbox()
    nothing = Offer({}, dict.fromkeys(NAMES, "needs Linux"))
    with (
        patch("rlax_plugin.reward.sandbox.sandbox.offered", return_value=nothing),
        pytest.raises(SandboxError, match="no layer of the sandbox can be had"),
    ):
        Sandbox(allow_weak=True)


def test_every_layer_was_tried() -> None:
    offer = offered()
    asked = set(NAMES) - (set() if os.geteuid() == 0 else {"unused uid"})
    assert offer.having.keys() | offer.missing.keys() == asked
    assert not offer.having.keys() & offer.missing.keys()
