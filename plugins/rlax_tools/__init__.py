"""The environment ``tools`` and the prompt source ``harbor``, see docs/tools.md."""

from __future__ import annotations

from rlax_plugin.api import Extension, hookimpl
from rlax_tools.environment import Tools, ToolsConfig, check, check_start
from rlax_tools.harbor import HarborConfig, HarborSource


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {
        "tools": Extension(
            ToolsConfig, Tools, check=check, check_start=check_start, needs_model=True
        )
    }


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"harbor": Extension(HarborConfig, HarborSource, needs_model=True)}
