"""The table of upstream symbols in use, of ``declared.toml``.

Importing this module imports nothing of MaxText, JetStream or JAX.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxtext_overrides.upstream.override import Override


def _override(fields: Mapping[str, Any]) -> Override:
    return Override(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


BY_MODULE: Mapping[str, tuple[Override, ...]] = {
    module: tuple(map(_override, entries))
    for module, entries in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    ).items()
}
"""Module of this project -> the upstream symbols that it relies on."""
(CONFIG_KEYS,) = BY_MODULE["maxtext_overrides and plugins"]
"""The keys of MaxText's config that this project reads, sets or rejects."""
