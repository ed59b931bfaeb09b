"""Where a run that is going on can be reached, in a file of its local state directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rlax_plugin.records.files import RunFiles

_ENDPOINTS = "endpoints.json"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a run that is going on can be reached; host:port each."""

    controller: str
    parameter_server: str


def write_endpoints(state_dir: Path, endpoints: Endpoints) -> None:
    """Says where the run is, in ``endpoints.json``, as long as it goes on."""
    RunFiles(state_dir).put_json(_ENDPOINTS, asdict(endpoints))


def remove_endpoints(state_dir: Path) -> None:
    """The run is over."""
    RunFiles(state_dir).delete(_ENDPOINTS)


def endpoints(state_dir: Path) -> Endpoints | None:
    """Where the run was when it last said so; after a kill nobody may answer there."""
    document = RunFiles(state_dir).get_json(_ENDPOINTS)
    return None if document is None else Endpoints(**document)
