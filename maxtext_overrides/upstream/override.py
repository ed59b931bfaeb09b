"""The declaration of one upstream symbol that is relied on, and its lookup.

Importing this module imports nothing of MaxText.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any, Literal

from rlax_plugin.base.errors import RlaxError


class OverrideError(RlaxError):
    """An upstream symbol differs from the one that its override was written for."""


@dataclass(frozen=True, slots=True)
class Override:
    """One upstream symbol that is replaced, called or read. Each is declared once.

    Attributes:
      symbol: dotted name of a function, class, constant or module, e.g.
        ``maxtext.trainers.pre_train.train.loss_fn``.
      use: ``replaced`` or ``wrapped`` by ours, for a while or for the life of the process.
        ``called``, or subclassed, unchanged. ``read``: its behaviour or content is relied on.
      why: the purpose: the change, with the reason why no config key can make it; or the use.
      delete_when: the upstream change that makes it superfluous.
      relies_on: parts of it that must stay: arguments, positions of the result, keys, attributes.
      sha256: hash of the source, as ``inspect.getsource`` returns it. Empty if only ``names``
        count.
      names: names that must exist inside: fields, functions, imports, keys of mappings.
      versions: versions of ``distribution`` with which it was tested.
      distribution: the PyPI name.
    """

    symbol: str
    use: Literal["replaced", "wrapped", "called", "read"]
    why: str
    delete_when: str
    relies_on: str = ""
    sha256: str = ""
    names: tuple[str, ...] = ()
    versions: tuple[str, ...] = ("0.2.5",)
    distribution: str = "maxtext"


def resolve(symbol: str) -> tuple[Any, str, Any]:
    """Returns (module or class, attribute name, object) of a dotted name.

    Raises:
      OverrideError: the module or the attribute does not exist.
    """
    owner_name, _, name = symbol.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_name)
        return owner, name, getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise OverrideError(f"{symbol} does not exist: {error}") from None
