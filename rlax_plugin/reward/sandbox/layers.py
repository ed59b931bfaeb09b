"""The layers of the sandbox, and the support of this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlax_plugin.reward.sandbox.memory import how

_PROBES_S = 20.0
_ROOT = Path(__file__).parents[3]

# Neither the environment nor site-packages: what is imported is Python's and this package's own.
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from rlax_plugin.reward.sandbox.{0} import main; main()"
)


NAMES = (
    *("user namespace", "unused uid", "pid namespace", "mount namespace", "network namespace"),
    *("ipc namespace", "uts namespace", "capability drop", "no new privileges", "landlock"),
    *("seccomp", "process limit", "memory limit"),
)
"""The layers; docs/sandbox.md says what each prevents. An unused uid is only tried as root."""


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
