"""The environment ``tools``: a chat model calls tools until it answers, see docs/tools.md."""

from __future__ import annotations

from rlax_plugin.api import Extension, hookimpl
from rlax_tools.environment import Tools, ToolsConfig, check, check_start


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {
        "tools": Extension(
            ToolsConfig, Tools, check=check, check_start=check_start, needs_model=True
        )
    }
