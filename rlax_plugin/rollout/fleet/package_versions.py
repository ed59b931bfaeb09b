"""The versions of packages that decide a sample, which a run and its workers must share."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence

from rlax_plugin.base.text.command_lines import pasteable
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.ports.manager import installed

PROJECT = "rlax-plugin"
_SIMILAR = (PROJECT, "jax", "maxtext")  # the first two numbers must be equal
_TOLD = (*_SIMILAR, "google-jetstream")
_MOST, _LONGEST = 64, 64  # packages of a worker; characters of a name and of a version
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_MOST_NOTED = 100  # workers that were noted: what they say may be anything


def own_versions(plugins: Sequence[str]) -> dict[str, str]:
    """Returns name -> version of this process's packages.

    They are this project, MaxText, JAX, JetStream, and the distributions of the plug-ins. Those
    that are not installed are left out, and so are plug-ins that are plain modules.
    """
    found: dict[str, str] = {}
    for name in _TOLD:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for plugin in installed():
        if plugin.name in plugins and plugin.distribution:
            found.setdefault(_canonical(plugin.distribution), plugin.version)
    return found


class PackageVersions:
    """Compares the packages of workers with those of the run.

    Args:
      run: name -> version, see ``own_versions``.
      allow_others: True to accept other versions, with a note.
      note: shows one line to the user.

    Attributes:
      run: name -> version of the run's packages.
    """

    def __init__(
        self,
        run: Mapping[str, str],
        *,
        allow_others: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ):
        self.run = dict(run)
        self._allow, self._note = allow_others, note
        self._noted: set[str] = set()

    def rejection(
        self, worker: str, told: Mapping[str, str], *, is_host: bool = False
    ) -> str | None:
        """Returns the reason why a worker cannot take part; None if it can.

        Args:
          told: name -> version, as the worker says.
          is_host: True if it is a host of the trainer, for which there is no exception.
        """
        if why := malformed(told):
            return why
        unlike = self._unlike(told)
        if not unlike:
            return None
        there = ", ".join(
            f"{name} {told.get(name, 'of an unknown version')} (this run has {version})"
            for name, version in unlike.items()
        )
        who = one_line(worker) if is_host else f"worker {one_line(worker)}"
        line = f"{who} has other packages than this run: {there}"
        if self._allow:
            self._once(f"{line}; accepted by rlax.network.allow_other_versions")
            return None
        self._once(f"{line}; it was rejected")
        wanted = [f"{name}=={version}" for name, version in unlike.items()]
        remedy = f"{line}. On its machine run: {pasteable('pip', 'install', *wanted)}"
        if is_host:
            return remedy
        return (
            f"{remedy}. Or set rlax.network.allow_other_versions: true in the run's config, if you "
            "know that they compute the same"
        )

    def _unlike(self, told: Mapping[str, str]) -> dict[str, str]:
        """Returns name -> version of the run for each package in which a worker differs."""
        return {
            name: version
            for name, version in self.run.items()
            if (name in told or name == PROJECT) and not _fits(name, version, told.get(name, ""))
        }

    def _once(self, line: str) -> None:
        if line not in self._noted and len(self._noted) < _MOST_NOTED:
            self._noted.add(line)
            self._note(line)


def malformed(told: Mapping[str, str]) -> str | None:
    """Returns the reason why a worker's versions cannot be any; None if they can."""
    if len(told) > _MOST:
        return f"it tells versions of {len(told):,} packages, and at most {_MOST} are read"
    for name, version in told.items():
        for text in (name, version):
            if len(text) > _LONGEST or not _WORD.fullmatch(text):
                return f"{one_line(text, _LONGEST)!r} is neither a package nor a version"
    return None


def _fits(name: str, version: str, told: str) -> bool:
    if name == "google-jetstream":
        return True  # of the worker alone: the engine's own checks compare what it computes
    if name in _SIMILAR:
        return version.split(".")[:2] == told.split(".")[:2]
    return version == told


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
