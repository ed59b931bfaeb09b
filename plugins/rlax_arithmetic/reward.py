"""The reward ``exact_answer``."""

from __future__ import annotations

import re

from rlax_plugin.api import Prompt, Reward

_ANSWER = re.compile(r"\s*([0-9]+)\s*")


class ExactAnswer(Reward):
    """1.0 if the completion is exactly the reference's number, otherwise 0.0.

    White space around it is ignored. Leading zeros are accepted ("046" is 46), because numbers are
    compared. A sign, a decimal point or any other character makes it wrong.
    """

    def __call__(self, prompt: Prompt, completion: str) -> float:
        """Scores one completion.

        Raises:
          ValueError: the prompt's reference is not a number.
        """
        expected = _number(prompt.reference)
        if expected is None:
            raise ValueError(f"prompt {prompt.id}: reference {prompt.reference!r} is not a number")
        return float(_number(completion) == expected)


def _number(text: str) -> str | None:
    """Returns decimal digits without leading zeros; None if the text is not a number."""
    match = _ANSWER.fullmatch(text)
    return (match[1].lstrip("0") or "0") if match else None
