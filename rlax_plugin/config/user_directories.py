"""Directories of a user's files that belong to no run: the XDG base directories."""

from __future__ import annotations

import os
from pathlib import Path

from rlax_plugin.base.errors import ConfigError


def state_home(key: str) -> Path:
    """``$XDG_STATE_HOME``, by default ``~/.local/state``.

    Args:
      key: the setting that a user can change instead, for the error's message.

    Raises:
      ConfigError: neither is known, as for a user id in a container that has no account.
    """
    return _base("XDG_STATE_HOME", ".local/state", key)


def cache_home() -> Path:
    """``$XDG_CACHE_HOME``, by default ``~/.cache``.

    Raises:
      ConfigError: neither is known.
    """
    return _base("XDG_CACHE_HOME", ".cache", "XDG_CACHE_HOME")


def _base(variable: str, default: str, key: str) -> Path:
    if said := os.environ.get(variable):
        return Path(said)
    try:
        return Path.home() / default
    except RuntimeError:
        reason = f"must be set: this user has no home directory, and {variable} is not set"
        if key == variable:
            reason = "must be set in the environment: this user has no home directory"
        raise ConfigError(key, None, reason) from None
