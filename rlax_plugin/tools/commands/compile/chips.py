"""The kinds of TPU chips, and the names of slices of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlax_plugin.base.errors import ConfigError, alternatives

_NAME = re.compile(r"(?P<kind>[a-z0-9]+)-(?P<size>[1-9]\d*)")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of chip, as one device of JAX sees it.

    Attributes:
      kind: the first part of the name of a slice.
      hbm_bytes: memory that programs may use; the compiler of libtpu 0.0.52 states it when a
        program needs more.
      cores_per_device: the number in the name of a slice counts cores; v4 and v5p have two in one
        device.
      host: name of the slice that is one host.
    """

    kind: str
    hbm_bytes: int
    cores_per_device: int
    host: str


CHIPS = {
    chip.kind: chip
    for chip in (
        Chip("v4", int(30.75 * _GIB), 2, "v4-8"),
        Chip("v5e", int(15.75 * _GIB), 1, "v5e-4"),
        Chip("v5p", int(95.73 * _GIB), 2, "v5p-8"),
        Chip("v6e", int(31.24 * _GIB), 1, "v6e-4"),
        # Of TPU7x a chip is two devices, each with half of its memory.
        Chip("tpu7x", int(94.74 * _GIB), 1, "tpu7x-8"),
    )
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of chips of one kind.

    Attributes:
      name: for example ``v5e-16``.
      chip: its kind.
      devices: number of devices of JAX in it.
    """

    name: str
    chip: Chip
    devices: int

    @classmethod
    def parse(cls, option: str, name: str) -> Slice:
        """Reads the name of a slice, such as ``v5e-16``.

        The plug-in that compiles knows which sizes exist.

        Args:
          option: the option that has this value, for messages.

        Raises:
          ConfigError: it names no kind of chip and size.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            reason = "must be a kind of chip and a number, such as v5e-16"
            raise ConfigError(option, name, reason)
        chip = CHIPS.get(found["kind"])
        if chip is None:
            reason = f"names an unknown kind of chip; {alternatives(found['kind'], CHIPS)}"
            raise ConfigError(option, name, reason)
        size = int(found["size"])
        if size % chip.cores_per_device:
            reason = f"must be even, as the number counts cores, of which a {chip.kind} chip has 2"
            raise ConfigError(option, name, reason)
        return cls(name, chip, size // chip.cores_per_device)

    def one_host(self) -> Slice:
        """Returns one host of the same kind of chips, or this slice if it is smaller."""
        host = Slice.parse("", self.chip.host)
        return host if host.devices < self.devices else self
