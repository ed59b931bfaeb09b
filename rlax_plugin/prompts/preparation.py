"""Has a data set prepared by a process of its own, once, and finds what was prepared before."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlax_plugin.errors import ConfigError, DeadlineError, RlaxError
from rlax_plugin.prompts.config import KEY, MANIFEST, TRAIN, DatasetConfig
from rlax_plugin.prompts.table import PromptTable, Skipped
from rlax_plugin.records.private import check_private, make_private
from rlax_plugin.text.harmless import one_line
from rlax_plugin.tokens.tokenizer import Tokenizer

_FORMAT = 1  # of what is prepared: another number, and it is prepared anew
_UNUSED_S = 30 * 86_400  # after which what was prepared is removed
_LAST_WORDS = 2000  # bytes
_END_S = 10.0  # until a process that says nothing more has ended
Progress = Callable[[str, int], None]
"""Told what is being read, and how many rows of it were."""


class PreparedSource(Protocol):
    """A source as far as it decides its tables; see ``DatasetSource``."""

    @property
    def config(self) -> DatasetConfig: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_tokens(self) -> int: ...

    def identity(self) -> dict[str, Any]: ...


def cache_directory() -> Path:
    """Where prepared prompts are kept: they can be removed at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "rlax" / "prompts"


def tables_of(
    source: PreparedSource, *, deadline_s: float, progress: Progress
) -> dict[str, PromptTable]:
    """The tables of all splits of a source, prepared unless they are.

    Args:
      deadline_s: ``rlax.deadlines.prompts_s``.

    Raises:
      ConfigError: the data cannot be used, or other users could change what is prepared.
      DeadlineError: preparing made no progress for ``deadline_s``.
      RlaxError: it failed, or cannot be written.
    """
    asked = _request(source)
    found = cache_directory() / _key(asked)
    _check_private(found.parent)
    tables = open_tables(found, source)
    if tables is not None:
        return tables
    try:
        shutil.rmtree(found, ignore_errors=True)  # it cannot be opened
        make_private(found.parent)
        _check_private(found.parent)  # another user may just have made it
        with tempfile.TemporaryDirectory(prefix=".", dir=found.parent) as beside:
            filled = Path(beside, "filled")
            filled.mkdir()
            limits = dataclasses.asdict(source.tokenizer.chat.limits)
            told = {**asked, "directory": str(filled), "template_limits": limits}
            _ask(told, deadline_s, progress)
            _remove_unused(found.parent)
            if not found.exists():  # else another process was faster
                filled.rename(found)
            tables = open_tables(found, source)
    except OSError as error:
        raise RlaxError(f"prompts cannot be prepared in {found.parent}: {error}") from error
    if tables is None:
        raise RlaxError(f"prompts that were prepared in {found} cannot be opened")
    return tables


def _check_private(cache: Path) -> None:
    check_private("XDG_CACHE_HOME", str(cache.parents[1]), cache)


def _name_of(one: type) -> str:
    """A class as the other process finds it.

    Raises:
      RlaxError: it cannot.
    """
    name = f"{one.__module__}:{one.__qualname__}"
    if one.__module__ == "__main__" or getattr(sys.modules[one.__module__], one.__name__, 0) != one:
        raise RlaxError(f"{name} must be at the top of a module that can be imported")
    return name


def _request(source: PreparedSource) -> dict[str, Any]:
    """What decides the tables, as the other process is told it."""
    tokenizer = source.tokenizer
    return {
        "source": _name_of(type(source)),
        "config_class": _name_of(type(source.config)),
        "config": source.config.model_dump(mode="json"),
        "tokenizer": {
            "directory": str(tokenizer.directory),
            "key": "tokenizer_path",
            "arguments": dict(source.config.template_arguments),
        },
        "max_tokens": source.max_tokens,
        "identity": source.identity(),
    }


def _key(asked: Mapping[str, Any]) -> str:
    versions = {name: importlib.metadata.version(name) for name in ("tokenizers", "transformers")}
    text = json.dumps([_FORMAT, versions, asked], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def open_tables(directory: Path, source: PreparedSource) -> dict[str, PromptTable] | None:
    """What was prepared; None: it was not, or is damaged."""
    try:
        document = json.loads((directory / MANIFEST).read_bytes())
        os.utime(directory)
        return {
            split: PromptTable.open(
                directory / f"{split}.arrow",
                known,
                _weights(source, known["domains"]) if split == TRAIN else {},
                {
                    reason: Skipped(one["count"], [(p, w) for p, w in one["examples"]])
                    for reason, one in known["skipped"].items()
                },
            )
            for split, known in document["splits"].items()
        }
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _weights(source: PreparedSource, domains: list[str]) -> Mapping[str, float]:
    weights = source.config.weights
    if weights and (unlike := set(weights).symmetric_difference(domains)):
        raise ConfigError(
            f"{KEY}.weights",
            dict(weights),
            f"must name each domain of the training prompts, and no other; differs in "
            f"{', '.join(sorted(map(repr, unlike))[:5])}",
        )
    return weights


def _remove_unused(directory: Path) -> None:
    """What nobody has opened for a long time, and what killed processes have left."""
    for one in directory.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - one.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(one)


def _ask(asked: Mapping[str, Any], deadline_s: float, progress: Progress) -> None:
    """Runs the other process until it is done."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONHASHSEED": "0",  # some generators of tasks go through sets
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlax_plugin.prompts.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # a Ctrl-C is for this process to handle
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its log says why
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                process.stdin.flush()
            for line in _lines(process.stdout.fileno(), deadline_s):
                if "rows" in line:
                    progress(f"reading {one_line(str(line['split']), 64)}", int(line["rows"]))
                elif "reason" in line:
                    raise ConfigError(line["key"], line["value"], line["reason"])
                elif "error" in line:
                    raise RlaxError(f"prompts cannot be prepared: {line['error']}")
                else:
                    return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            status = process.returncode
            said = one_line(_tail(log).strip().rpartition("\n")[2] or "it said nothing", 500)
            raise RlaxError(f"the process that prepares prompts ended with status {status}: {said}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
            process.stdout.close()


def _lines(descriptor: int, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Lines of JSON, until there are no more.

    Raises:
      DeadlineError: none came in time.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(deadline_s):
                what = "preparing prompts without reading another row"
                raise DeadlineError(what, deadline_s, "rlax.deadlines.prompts_s")
            data = os.read(descriptor, 1 << 16)
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)
            if not data:
                return


def _tail(log: Any) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
    return log.read().decode(errors="replace")
