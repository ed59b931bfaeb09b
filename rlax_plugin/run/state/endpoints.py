"""The addresses of an active run, in a file of its local state directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rlax_plugin.base.files.run_files import RunFiles

_ENDPOINTS = "endpoints.json"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of an active run, each host:port."""

    controller: str
    parameter_server: str


def write_endpoints(state_dir: Path, endpoints: Endpoints) -> None:
    """Writes the addresses of an active run to ``endpoints.json``."""
    RunFiles(state_dir).put_json(_ENDPOINTS, asdict(endpoints))


def remove_endpoints(state_dir: Path) -> None:
    """Removes the addresses of a run that has ended."""
    RunFiles(state_dir).delete(_ENDPOINTS)


def endpoints(state_dir: Path) -> Endpoints | None:
    """Reads the addresses that the run wrote last; after a kill they may be stale."""
    document = RunFiles(state_dir).get_json(_ENDPOINTS)
    return None if document is None else Endpoints(**document)
