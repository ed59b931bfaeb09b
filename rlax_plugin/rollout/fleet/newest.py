"""The newest published weight version, kept in one place of the controller's process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class NewestVersion:
    """Receives each publication, and provides the newest version to all other components.

    Attributes:
      number: of the newest published version; -1: none.
    """

    number: int = -1

    @property
    def most_used(self) -> int:
        """The newest version that a worker may hold, and generate with.

        It is one above ``number``: a separate parameter server may announce a version to the
        worker shortly before the controller learns that it is published.
        """
        return self.number + 1

    def rejection(self, *claimed: int) -> str | None:
        """Returns the reason a worker cannot hold or keep its claimed versions; None if it can.

        With a version above ``most_used`` it would get requests that no worker can answer yet, and
        its answers would count as newer than all existing weights. It is rejected rather than
        corrected: a worker with wrong version numbers may also generate wrong samples.

        Args:
          claimed: versions; -1: none.
        """
        for version in claimed:
            if not -1 <= version <= self.most_used:
                return f"it claims version {version}, and the newest is {self.number}"
        return None
