"""Has another process prepare a dataset once, and finds tables that were prepared before."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.errors import ConfigError, DeadlineError, RlaxError
from rlax_plugin.processes.asked import AskedProcess, EndedError, with_this_path
from rlax_plugin.prompts.config import KEY, MANIFEST, TRAIN
from rlax_plugin.prompts.table import PromptTable, Skipped
from rlax_plugin.records.private import check_private, make_private
from rlax_plugin.text.harmless import one_line

if TYPE_CHECKING:
    from rlax_plugin.prompts.source import DatasetSource

_FORMAT = 1  # of what is prepared: another number, and it is prepared anew
_UNUSED_S = 30 * 86_400  # after which what was prepared is removed
_END_S = 10.0  # until a process that says nothing more has ended
Progress = Callable[[str, int], None]
"""Called with the name of the data being read, and the number of rows read so far."""


def cache_directory() -> Path:
    """The directory of prepared prompts, which can be deleted at any time.

    Raises:
      ConfigError: this user has no directory for it.
    """
    return cache_home() / "rlax" / "prompts"


def tables_of(
    source: DatasetSource, *, deadline_s: float, progress: Progress
) -> dict[str, PromptTable]:
    """The tables of all splits of a source, prepared if they do not exist yet.

    Args:
      deadline_s: ``rlax.deadlines.prompts_s``.

    Raises:
      ConfigError: the data cannot be used, or other users could change the prepared files.
      DeadlineError: preparing made no progress for ``deadline_s``.
      RlaxError: preparing failed, or its result cannot be written.
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
    """Name under which the other process finds a class.

    Raises:
      RlaxError: the other process cannot find it.
    """
    name = f"{one.__module__}:{one.__qualname__}"
    if one.__module__ == "__main__" or getattr(sys.modules[one.__module__], one.__name__, 0) != one:
        raise RlaxError(f"{name} must be at the top of a module that can be imported")
    return name


def _request(source: DatasetSource) -> dict[str, Any]:
    """The input of the other process: everything that decides the tables."""
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


def open_tables(directory: Path, source: DatasetSource) -> dict[str, PromptTable] | None:
    """The prepared tables; None if there are none, or they are damaged."""
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


def _weights(source: DatasetSource, domains: list[str]) -> Mapping[str, float]:
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
    """Removes tables that were not opened for a long time, and the remains of killed processes."""
    for one in directory.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - one.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(one)


def _ask(asked: Mapping[str, Any], deadline_s: float, progress: Progress) -> None:
    """Runs the other process until it is done.

    Raises:
      DeadlineError: no row was read for ``deadline_s``.
    """
    process = AskedProcess(
        "rlax_plugin.prompts.reading_process",
        environment={
            **with_this_path(),
            "PYTHONHASHSEED": "0",  # some generators of tasks go through sets
        },
        keeps_log=True,
        leads_session=True,  # a Ctrl-C is for this process to handle
    )
    try:
        process.send(json.dumps(asked).encode() + b"\n")
        while True:
            line = json.loads(process.receive(deadline_s))
            if "rows" in line:
                progress(f"reading {one_line(str(line['split']), 64)}", int(line["rows"]))
            elif "reason" in line:
                raise ConfigError(line["key"], line["value"], line["reason"])
            elif "error" in line:
                raise RlaxError(f"prompts cannot be prepared: {line['error']}")
            else:
                return
    except TimeoutError:
        what = "preparing prompts without reading another row"
        raise DeadlineError(what, deadline_s, "rlax.deadlines.prompts_s") from None
    except EndedError:  # its log says why
        ending = process.ending(_END_S)
        raise RlaxError(
            f"the process that prepares prompts ended with status {ending.status}: "
            f"{ending.said or 'it said nothing'}"
        ) from None
    finally:
        process.close()
