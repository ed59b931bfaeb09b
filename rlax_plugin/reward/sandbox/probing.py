"""Tries the layers one by one, each in a separate process, and prints the result as JSON.

Started as a bare Python by ``layers.offered``. Imports nothing of the project but this package.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Callable

from rlax_plugin.reward.sandbox import entering, kernel, seccomp, view

_ROOT = os.geteuid() == 0
_USER, _GROUP = os.geteuid(), os.getegid()


def main() -> None:
    having: dict[str, str] = {}
    missing: dict[str, str] = {}
    probes: dict[str, Callable[[], str]] = {
        **{name: _namespace(name) for name in entering.NAMESPACES},
        "mount namespace": _view,
        "uts namespace": _host_name,
        "capability drop": _capabilities,
        "no new privileges": _no_new_privileges,
        "landlock": _landlock,
        "seccomp": _seccomp,
    }
    if _ROOT:
        probes["unused uid"] = _unused_uid
    for name, probe in probes.items():
        right, said = _tried(probe)
        (having if right else missing)[name] = said
    if "user namespace" in having or "unused uid" in having:
        having["process limit"] = "per sandbox"
    else:
        missing["process limit"] = "it would count all processes of this user"
    print(json.dumps({"having": having, "missing": missing}))


def _tried(probe: Callable[[], str]) -> tuple[bool, str]:
    """Returns True if a probe succeeds in a forked process, and its message."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        right, said = False, "its process died"
        try:
            right, said = True, probe()
        except OSError as error:
            said = str(error)
        os.write(write, said.encode()[:500])
        os._exit(0 if right else 1)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return status == 0, said if os.WIFEXITED(status) else f"ended by signal {os.WTERMSIG(status)}"


def _as_tested() -> None:
    """Enters a user namespace unless this is root, to have the rights that probes need."""
    if not _ROOT:
        os.unshare(os.CLONE_NEWUSER)
        entering.write_tables(os.getpid(), _USER, _GROUP)


def _namespace(name: str) -> Callable[[], str]:
    def probe() -> str:
        if name != "user namespace":
            _as_tested()
        os.unshare(entering.FLAGS[name])
        return ""

    return probe


def _view() -> str:
    _as_tested()
    os.unshare(os.CLONE_NEWNS)
    view.build()
    view.new_work_place(1 << 20)
    if os.listdir(view.WORK):
        raise OSError("the new root directory is not empty")
    return ""


def _host_name() -> str:
    _as_tested()
    os.unshare(os.CLONE_NEWUTS)
    kernel.set_host_name(entering.HOST_NAME)
    if socket.gethostname() != entering.HOST_NAME:
        raise OSError("the host's name can still be seen")
    return ""


def _capabilities() -> str:
    _as_tested()
    kernel.forbid_capabilities()
    kernel.drop_capabilities()
    return ""


def _no_new_privileges() -> str:
    kernel.no_new_privileges()
    return ""


def _landlock() -> str:
    kernel.no_new_privileges()
    version = kernel.landlock_version()
    kernel.restrict_files([], [])
    try:
        os.listdir("/")
    except PermissionError:
        return f"version {version}"
    raise OSError("it is there, and restricts nothing")


def _seccomp() -> str:
    if not seccomp.supported():
        raise OSError(f"the system calls of {platform.machine()} are not known")
    kernel.no_new_privileges()
    seccomp.refuse_calls()
    try:
        socket.socket(socket.AF_INET).close()
    except PermissionError:
        return ""
    raise OSError("it is there, and rejects nothing")


def _unused_uid() -> str:
    uid = entering.unused_uid(os.getpid())
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    return ""
