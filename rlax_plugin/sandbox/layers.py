"""The layers of the sandbox: the attacks that each prevents, and the support of this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlax_plugin.sandbox.memory import how

_PROBES_S = 20.0
_ROOT = Path(__file__).parents[2]

# Neither the environment nor site-packages: what is imported is Python's and this package's own.
_START = (
    "import sys; sys.path.append(sys.argv[1]); from rlax_plugin.sandbox.{0} import main; main()"
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One means of containment.

    Attributes:
      name: name in messages and in ``rlax check``.
      keeps_off: the actions of tested code that it prevents.
    """

    name: str
    keeps_off: str


LAYERS = (
    Layer("user namespace", "rights of this user over other processes and over namespaces"),
    Layer("unused uid", "what root may do without any capability; only tried as root"),
    Layer("pid namespace", "seeing or signalling other processes; processes that outlive a test"),
    Layer("mount namespace", "reading this machine's files; more files than the limit allows"),
    Layer("network namespace", "reaching other machines, and services of this one"),
    Layer("ipc namespace", "shared memory and queues of other processes"),
    Layer("uts namespace", "the host's name"),
    Layer("capability drop", "the rights of root, one by one"),
    Layer("no new privileges", "set-uid programs"),
    Layer("landlock", "files outside of the view; running programs; TCP; signals to outside"),
    Layer(
        "seccomp", "every system call that Python does not need, such as ptrace, mount, bpf, execve"
    ),
    Layer("process limit", "fork bombs"),
    Layer("memory limit", "memory bombs"),
)
NAMES = tuple(layer.name for layer in LAYERS)


@dataclass(frozen=True, slots=True)
class Offer:
    """The layers that this machine offers to this user.

    Attributes:
      having: layer -> its implementation, or "".
      missing: layer -> the reason why it is missing.
    """

    having: Mapping[str, str]
    missing: Mapping[str, str]

    def refusal(self) -> str | None:
        """Returns the reason untrusted code must not run here, as a sentence; None if it may."""
        if not self.missing:
            return None
        named = "; ".join(f"{name} ({why})" for name, why in self.missing.items())
        return f"this machine lacks layers of the sandbox: {named}"


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command that starts a module of this package in a bare Python."""
    start = _START.format(module)
    return [sys.executable, "-s", "-S", "-P", "-B", "-c", start, str(_ROOT), *arguments]


# The order of sets does not differ from one process to the next.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


@functools.cache
def offered() -> Offer:
    """Tries every layer in a separate process, and returns the result; once per process.

    Only Linux has any of them.
    """
    if sys.platform != "linux":
        return Offer({}, dict.fromkeys(NAMES, f"needs Linux, and this is {sys.platform}"))
    try:
        done = subprocess.run(
            command("probing"),
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBES_S,
            check=False,
        )
        found = json.loads(done.stdout)
        having = found["having"] | {"memory limit": how()}
        return Offer(_in_order(having), _in_order(found["missing"]))
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired) as error:
        reason = f"the probes failed: {type(error).__name__}: {error}"[:500]
        return Offer({}, dict.fromkeys(NAMES, reason))


def _in_order(found: Mapping[str, str]) -> dict[str, str]:
    return {name: found[name] for name in NAMES if name in found}
