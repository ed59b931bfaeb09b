"""The newest weight version that is published: one place of the controller's process knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class NewestVersion:
    """Told of each publication; everyone who needs to know the newest version asks this.

    Attributes:
      number: of the newest published version; -1: none.
    """

    number: int = -1

    @property
    def most_used(self) -> int:
        """The newest version that a worker may hold, and generate with.

        A separate parameter server may tell it of a version a moment before the controller hears
        that it is published, so the next one is believed.
        """
        return self.number + 1

    def rejection(self, *claimed: int) -> str | None:
        """Says why a worker cannot hold or keep the versions that it claims; None if it can.

        With a version above ``most_used`` it would get the requests that nobody can answer yet, and
        what it answers would count as newer than all that exists. It is rejected rather than
        corrected: a worker that errs in this would err in what it generates.

        Args:
          claimed: versions; -1: none.
        """
        for version in claimed:
            if not -1 <= version <= self.most_used:
                return f"it claims version {version}, and the newest is {self.number}"
        return None
