"""Environments of verifiers 0.4: their tasks are prompts, their code plays (docs/tools.md)."""

from __future__ import annotations

from rlax_plugin.api import Extension, hookimpl
from rlax_verifiers.environment import Verifiers, VerifiersConfig, check
from rlax_verifiers.source import VerifiersSource, VerifiersSourceConfig


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"verifiers": Extension(VerifiersSourceConfig, VerifiersSource, needs_model=True)}


@hookimpl
def rlax_register_environment() -> dict[str, Extension]:
    return {"verifiers": Extension(VerifiersConfig, Verifiers, check=check, needs_model=True)}
