"""Checks the functions that a config names: before anything is started, and against the data."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.base.processes.asked import AskedProcess, EndedError
from rlax_plugin.base.types import Prompt
from rlax_plugin.config import FunctionChoice
from rlax_plugin.config.functions import parse_function
from rlax_plugin.reward.functions.signatures import FILTER, GROUP, SAMPLE, FunctionError, Signature

LARGEST = 1 << 20
"""Bytes of a file of functions, of which every run keeps a copy."""

_END_S = 10.0  # for a process to end that has closed its output
_LOOKED_AT = 100  # prompts; those of a file nearly always have the same columns


def read_file(path: Path) -> bytes:
    """Returns the content of a file of functions.

    Raises:
      FunctionError: there is no such file, or it is none that may be one.
    """
    try:
        if path.is_dir():
            raise FunctionError(f"{path} is a directory: name a file in it, such as rewards.py")
        if not path.is_file():
            if path.exists():
                raise FunctionError(f"{path} is no regular file")
            near = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise FunctionError(f"there is no file {path}; {alternatives(path.name, near)}")
        if (size := path.stat().st_size) > LARGEST:
            raise FunctionError(f"{path} has {size:,} bytes, and may have {LARGEST:,}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FunctionError(f"{path} cannot be read: {reason}") from None


def checked_signature(
    function: str, kind: str, functions: Mapping[str, str], deadline_s: float
) -> Signature:
    """Returns the signature of a function that a config names.

    Args:
      function: value of the key ``function``.
      functions: file as the config names it -> file to execute.
      deadline_s: ``rlax.deadlines.startup_s``.

    Raises:
      FunctionError: it cannot be used; its file ends the process, or takes too long.
    """
    name = parse_function(function)
    path = functions.get(name.file, name.file)
    digest = hashlib.sha256(read_file(Path(path))).hexdigest() if path else ""
    return _signature_in_child(digest, deadline_s, path, name.module, name.name, kind)


@functools.cache
def _signature_in_child(digest: str, deadline_s: float, path: str, *words: str) -> Signature:
    """Returns the signature that a child process reads, once for each content of the file."""
    place = os.path.basename(path) or f"module {words[0]}"
    # As the leader of a session it ends with what the file has started.
    child = AskedProcess(
        "rlax_plugin.reward.functions.signatures", path, *words, keeps_log=True, leads_session=True
    )
    try:
        answer = json.loads(child.receive(deadline_s))
    except TimeoutError:
        raise FunctionError(
            f"{place} takes longer than {deadline_s:g} s to be imported (set "
            "rlax.deadlines.startup_s to wait longer): put what it does into its functions"
        ) from None
    except (EndedError, ValueError):
        code = child.ending(_END_S).status
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        raise FunctionError(f"{place} ends the process {how} when it is imported") from None
    finally:
        child.close()
    if "error" in answer:
        raise FunctionError(answer["error"])
    tuples = {key: tuple(answer["signature"][key]) for key in ("required", "optional")}
    return Signature(**answer["signature"] | tuples)


def check_columns(
    choices: Sequence[FunctionChoice],
    kind: str,
    key: str,
    functions: Mapping[str, str],
    prompts: Sequence[Prompt],
    references: Collection[str],
    deadline_s: float,
) -> None:
    """Checks that some of the first prompts have each column that a function needs.

    A prompt that lacks one nevertheless leaves its samples without a reward.

    Args:
      choices: the parts under ``key``.
      kind: their kind.
      references: columns that the prompt source may read as the reference, which it then does not
        keep under their own names.

    Raises:
      ConfigError: none has it; lists those that there are.
    """
    columns: set[str] | None = None
    for number, choice in enumerate(choices):
        if not choice.function:
            continue
        place = f"{key}.{number}"
        try:
            signature = checked_signature(choice.function, kind, functions, deadline_s)
        except FunctionError as error:
            raise ConfigError(f"{place}.function", choice.function, str(error)) from None
        if columns is None:
            first = (prompts[index] for index in range(min(_LOOKED_AT, len(prompts))))
            columns = {name for prompt in first for name in prompt.metadata}
        if lacking := [name for name in signature.columns if name not in columns]:
            own = FILTER if kind == "filter" else GROUP if signature.form == "group" else SAMPLE
            name = lacking[0]
            reason = (
                f"{signature.where} has a parameter {name!r}, but the prompts have no such column; "
                f"{alternatives(name, {*own, *columns})}. "
            )
            if name in references:
                kept = ", ".join(sorted({*columns, name}))
                reason += (
                    f"If {name} is the column of the references, its parameter is called "
                    f"'reference'; with rlax.prompt_source.metadata: [{kept}] it keeps its name too"
                )
            else:
                reason += "Give the parameter a default if it may be missing"
            raise ConfigError(f"{place}.function", choice.function, reason)
