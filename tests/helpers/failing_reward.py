"""Rewards that fail at every call: one raises, and one ends its process."""

from __future__ import annotations

import os

from rlax_plugin.api import Extension, NoOptions, Prompt, hookimpl


def _raises(prompt: Prompt, completion: str) -> float:
    raise ValueError("there is no number in it")


def _dies(prompt: Prompt, completion: str) -> float:
    os._exit(3)


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {
        "raises": Extension(NoOptions, lambda config, context: _raises),
        "dies": Extension(NoOptions, lambda config, context: _dies),
    }
