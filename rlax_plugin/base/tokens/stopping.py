"""Finds where a sample ends by a stop string, exactly in tokens, and cuts its text before it.

A sample ends with the first token at which the text of all its tokens contains a stop string. That
token is kept and trained on, even if its text goes beyond the string, because the policy has
sampled it. The text that rewards and people read ends before the string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Decode = Callable[[np.ndarray], str]
"""``PromptSource.decode``."""

MAX_STOP_STRINGS = 8
LONGEST_STOP_STRING = 256
"""Characters."""

_UNFINISHED = "\ufffd"  # what bytes become that are no whole character
_BEHIND = 4  # tokens after which bytes that are no character yet will not become one


def problem_of(stop_strings: Sequence[str]) -> str | None:
    """Returns in words what is wrong with stop strings; None if they are valid."""
    if not isinstance(stop_strings, tuple) or not all(isinstance(s, str) for s in stop_strings):
        return f"stop_strings is {stop_strings!r:.100}, and must be a tuple of texts"
    if len(stop_strings) > MAX_STOP_STRINGS:
        return f"{len(stop_strings)} stop strings, at most {MAX_STOP_STRINGS} are supported"
    for one in stop_strings:
        if not 0 < len(one) <= LONGEST_STOP_STRING or _UNFINISHED in one:
            return (
                f"stop string {one!r:.100}: it must have 1 to {LONGEST_STOP_STRING} characters, "
                "U+FFFD not among them"
            )
    return None


def cut(text: str, stop_strings: Sequence[str]) -> str:
    """Returns the text before the first stop string in it."""
    places = [place for s in stop_strings if (place := text.find(s)) >= 0]
    return text[: min(places)] if places else text


class StopFinder:
    """Finds the end of one sample, given its tokens in portions of any length.

    A portion is decoded with a few tokens before it, so that a long sample costs no more per token
    than a short one.

    Args:
      stop_strings: see ``problem_of``.
      decode: maps tokens to text.
    """

    def __init__(self, stop_strings: Sequence[str], decode: Decode):
        self._stop_strings, self._decode = stop_strings, decode
        self._kept = max(map(len, stop_strings)) - 1  # characters that a string may begin in
        self._tokens = np.zeros(0, np.int32)  # the window: what is decoded once more
        self._known = 0  # of these, tokens whose text is final
        self._before = ""  # their text
        self._tail = ""  # the last characters of all final text
        self.seen = 0

    def find(self, tokens: np.ndarray) -> int | None:
        """Returns the number of the next tokens that belong to the sample; None if it continues.

        Args:
          tokens: int32 [length], the tokens after those of earlier calls.
        """
        joined = np.concatenate([self._tokens, tokens])
        text = self._decode(joined)
        new = text[len(self._before) :]
        found = any(s in self._tail + new for s in self._stop_strings)
        whole = text.startswith(self._before) and _UNFINISHED not in new
        if len(tokens) > 1 and (found or not whole):
            # Bytes that are no character yet may hide what an earlier token has completed.
            half = len(tokens) // 2
            first = self.find(tokens[:half])
            if first is not None:
                return first
            second = self.find(tokens[half:])
            return None if second is None else half + second
        if found:
            return len(tokens)
        self.seen += len(tokens)
        self._advance(joined, text)
        return None

    def _advance(self, joined: np.ndarray, text: str) -> None:
        """Moves the window on, to the position up to which the text is final."""
        self._tokens = joined
        final = len(joined)
        if text.endswith(_UNFINISHED):
            final -= _BEHIND
            if final <= self._known:
                return
            before, text = text, self._decode(joined[:final])
            if not before.startswith(text):
                return
        new = text[len(self._before) :]
        if not new:
            return
        self._tail = (self._tail + new)[-self._kept :] if self._kept else ""
        # The final tokens stay as the window's beginning: some decoders treat a beginning
        # otherwise, such as leaving out its space.
        self._tokens, start = joined[self._known :], self._known
        self._known = final - start
        self._before = self._decode(self._tokens[: self._known])


def end_of(tokens: np.ndarray, stop_strings: Sequence[str], decode: Decode) -> int | None:
    """Returns the number of a sample's tokens up to its first stop string; None if it has none."""
    return StopFinder(stop_strings, decode).find(tokens) if len(tokens) else None
