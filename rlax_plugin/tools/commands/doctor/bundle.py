"""Packs the evidence about a run into one file, for another person to read; it has no secrets."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import yaml

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import CONFIG, RunFiles
from rlax_plugin.base.liveness.marks import Mark
from rlax_plugin.base.text.secrets import hidden, learn_secrets, stripped
from rlax_plugin.config.yaml_values import parse
from rlax_plugin.run.controller.limits import ANSWERED, FAILED_SUCH_AS
from rlax_plugin.tools.commands.doctor.evidence import Evidence, last_lines
from rlax_plugin.tools.commands.status.place import read_plain

_LINES = 500  # of each log
# A message is one line, and what it quotes may contain any mark that would end a quotation.
_QUOTE = re.compile(f"({ANSWERED}|{FAILED_SUCH_AS}).*")
_LEFT_OUT = "rewards.log"  # rewards print what they like, such as answers


def write_bundle(
    path: Path, run: RunFiles, state_dir: Path, evidence: Evidence, stacks: Mapping[Mark, str]
) -> Path:
    """Writes a ``.tar.gz`` that only this user can read; returns its path.

    Every file passes ``hidden``, and tokens and keys of the run are in none of those that it packs,
    nor are prompts and answers.

    Raises:
      ConfigError: the file exists, or cannot be written.
    """
    files = {
        "config.yml": _config(run),
        "processes.json": json.dumps([asdict(one) for one in evidence.processes], indent=2),
        "machine.json": json.dumps(
            {
                "now": evidence.now,
                "available_bytes": evidence.available,
                "memory_bytes": evidence.memory,
                "disks": [asdict(one) for one in evidence.disks],
            },
            indent=2,
        ),
    }
    if (status := evidence.seen.status) is not None:
        quotes = {"controller": {"reward_error"}}
        files["status.json"] = status.model_dump_json(indent=2, exclude=quotes)
    if evidence.seen.ended:
        files["ended.txt"] = evidence.seen.problem
    for mark, text in stacks.items():
        files[f"stacks/{mark.role.replace(' ', '-')}-{mark.pid}.txt"] = text
    for log in sorted((state_dir / "logs").glob("*.log")):
        if log.name != _LEFT_OUT:
            files[f"logs/{log.name}"] = "\n".join(last_lines(log, _LINES))
    try:
        with (
            open(path, "xb", opener=_private) as out,
            tarfile.open(fileobj=out, mode="w:gz") as tar,
        ):
            for name, text in files.items():
                _add(tar, f"rlax-doctor/{name}", hidden(_QUOTE.sub(r"\1 (left out)", text)))
    except OSError as error:
        raise ConfigError("--bundle", str(path), f"cannot be written: {error.strerror}") from None
    return path


def _config(run: RunFiles) -> str:
    """Returns the config of a run without secrets, which cannot be found in what is not YAML."""
    try:
        content = parse(read_plain(run, CONFIG), CONFIG)
    except RlaxError as error:
        return f"(left out: {error})"
    learn_secrets(content)  # the logs may repeat them
    return yaml.safe_dump(stripped(content))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _add(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode(errors="replace")
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
    tar.addfile(info, io.BytesIO(data))
