"""Keeps the figures of compiled programs in the user's cache directory.

An entry belongs to the config, the slice, the versions of the libraries and the source of this
project, because each of them changes what is compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlax_plugin.config.identity import config_hash, hashed
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.ports.compiling import CompiledProgram
from rlax_plugin.records.private import make_private

_LIBRARIES = ("rlax-plugin", "maxtext", "jax", "jaxlib", "libtpu", "flax", "optax", "qwix")
_FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
# Files of a config that is merged elsewhere are part of its content; MaxText's own one is not.
_MORE_KEYS = ("base_config",)
_PACKAGES = (
    "maxtext_overrides",
    "rlax_jetstream",
    "rlax_maxtext",
    "rlax_objectives",
    "rlax_plugin",
)


def directory() -> Path:
    """The directory of all entries.

    Raises:
      ConfigError: the user has no cache directory.
    """
    return cache_home() / "rlax" / "compiled"


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that decide what is compiled."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def key(
    config: ResolvedConfig, kind: str, topology: str, used: Mapping[str, str], source: str
) -> str:
    """Returns the name of an entry.

    Args:
      kind: kind of the part that compiles.
      used: see ``versions``.
      source: see ``source_digest``.
    """
    decisive = {
        "config": config_hash(config.content),
        "keys": {name: config.content.get(name) for name in _MORE_KEYS},
        # MaxText's keys in arguments win over those of a named model.
        "arguments": sorted(config.arguments & hashed(config.content).keys() - {"rlax"}),
        "functions": {name: _digest(Path(path)) for name, path in config.functions.items()},
        "kind": kind,
        "topology": topology,
        "versions": dict(used),
        "source": source,
        "flags": {name: os.environ.get(name, "") for name in _FLAGS},
    }
    text = json.dumps(decisive, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@functools.cache
def source_digest() -> str:
    """Returns a digest of the modules of this project that take part in compiling."""
    root = Path(__file__).parents[3]
    places = [base / name for base in (root, root / "plugins") for name in _PACKAGES]
    found = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*.py")):
            found.update(str(path.relative_to(root)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:24]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(name: str) -> list[CompiledProgram] | None:
    """Returns the programs of an entry; None if there is none, or it cannot be read.

    Raises:
      ConfigError: the user has no cache directory.
    """
    try:
        document = json.loads((directory() / f"{name}.json").read_text())
        return [CompiledProgram(**one) for one in document["programs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(name: str, programs: Sequence[CompiledProgram], about: Mapping[str, Any]) -> Path:
    """Writes an entry in one operation, and returns its path.

    Args:
      about: facts for a reader of the file, such as the slice and the versions.

    Raises:
      ConfigError: the user has no cache directory.
      OSError: the directory cannot be written.
    """
    place = directory()
    make_private(place)
    path = place / f"{name}.json"
    entry = {**about, "programs": [dataclasses.asdict(one) for one in programs]}
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    unfinished.write_text(json.dumps(entry, indent=2))
    unfinished.rename(path)
    return path
