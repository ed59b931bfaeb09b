"""Runs transformers in a process of its own, and reads what it computes with a model."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.text.harmless import one_line

_PROGRAM = Path(__file__).with_name("transformers_program.py")
_LOOK = """
import sys
from importlib.util import find_spec
sys.exit(not (find_spec("torch") and find_spec("transformers")))
"""
_LOOK_S, _PROGRAM_S = 60.0, 3600.0
_RAISED = re.compile(r"[A-Za-z_.]+(Error|Exception|Interrupt): ")


@dataclass(frozen=True, slots=True)
class Computed:
    """The result that transformers computed.

    Attributes:
      made_with: versions of transformers and torch.
      answer: [count] greedy tokens.
      logits: [k, vocabulary].
      far: [f, vocabulary]; None if there were no positions to compute.
      rounding: largest difference at these positions between computing the answer at once and token
        by token.
    """

    made_with: str
    answer: np.ndarray
    logits: np.ndarray
    far: np.ndarray | None
    rounding: float


def has_torch(python: str) -> bool:
    """True if a Python has torch and transformers; neither is imported.

    Raises:
      ConfigError: there is no such Python.
      RlaxError: the Python does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="rlax-verify-") as name:
        return _run([python, "-c", _LOOK], name, _LOOK_S).returncode == 0


def ask(
    python: str, source: Path, prompt: np.ndarray, count: int, at: np.ndarray, far: np.ndarray
) -> Computed:
    """Returns the logits of a prompt and of the greedy answer to it.

    Args:
      python: path of a Python that has torch and transformers.
      source: a Hugging Face directory, or a GGUF file.
      prompt: [n] tokens.
      count: number of tokens to generate.
      at: [k] positions in prompt and answer.
      far: [f] positions that the first tokens of the prompt get in another computation.

    Raises:
      ConfigError: there is no such Python.
      RlaxError: transformers cannot load or compute the model, or not within an hour.
    """
    with tempfile.TemporaryDirectory(prefix="rlax-verify-") as name:
        asked, answered = Path(name, "asked.npz"), Path(name, "answered.npz")
        np.savez(asked, prompt=prompt, answer=count, at=at, far=far)
        command = [python, str(_PROGRAM), str(source.absolute()), str(asked), str(answered)]
        done = _run(command, name, _PROGRAM_S)
        if done.returncode:
            said = _last_error(done.stderr.decode(errors="replace"), done.returncode)
            raise RlaxError(f"--verify: transformers cannot compute {source}: {said}")
        with np.load(answered) as file:
            return Computed(
                str(file["made_with"]),
                file["answer"],
                file["logits"],
                file["far"] if len(far) else None,
                float(file["rounding"]),
            )


def _run(command: list[str], directory: str, limit_s: float) -> subprocess.CompletedProcess[bytes]:
    """Runs a Python in a directory that holds no modules, so that none there shadows an import."""
    try:
        return subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
        )
    except OSError as error:
        reason = f"cannot be started: {error.strerror}"
        raise ConfigError("--verify-python", command[0], reason) from None
    except subprocess.TimeoutExpired:
        raise RlaxError(f"--verify: {command[0]} did not end within {limit_s:g} s") from None


def _last_error(text: str, status: int) -> str:
    """Returns the first line of the exception with which a program ended."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return one_line((raised or lines or [f"it ended with status {status}"])[-1])
