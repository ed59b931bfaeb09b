"""The reward ``exact_match``: the answer equals the reference, character by character."""

from __future__ import annotations

import unicodedata
from typing import Literal

from pydantic import Field

from rlax_plugin.api import Prompt, Reward
from rlax_rewards.answers import AnswerConfig, answer_in

# Characters of a text that are at most one after normalising, see ``_normal``.
_MOST_COMPOSED = 4


class ExactMatchConfig(AnswerConfig):
    """1 if the answer equals the prompt's reference, else 0."""

    ignore_case: bool = Field(False, description="true: compare without case, in every script")
    ignore_spaces: bool = Field(
        False, description="true: any white space between words equals one space"
    )
    unicode: Literal["nfc", "nfkc", "exact"] = Field(
        "nfc",
        description="nfc: accents may be written as one character or as two; nfkc: also full-width "
        "letters and digits, ligatures and superscripts equal the plain ones; exact: as written",
    )


class ExactMatch(Reward):
    """1.0 if the answer equals the reference, else 0.0.

    White space at both ends of the answer and of the reference never counts. Nothing else is
    removed: neither punctuation, quotes and Markdown nor invisible characters, such as
    right-to-left marks and zero-width spaces.
    """

    def __init__(self, config: ExactMatchConfig):
        self._config = config

    def __call__(self, prompt: Prompt, completion: str) -> float:
        """Scores one completion.

        Raises:
          ValueError: the prompt has no reference.
        """
        expected = self._normal(prompt.reference)
        if not expected:
            raise ValueError(f"prompt {prompt.id} has no reference to compare with")
        config = self._config
        answer = answer_in(completion, config.answer, marker=config.marker, tag=config.tag)
        if answer is None:
            return 0.0
        if config.ignore_spaces:
            answer = " ".join(answer.split())
        # To put marks in order takes time quadratic in their number: of a long text it is not done.
        if len(answer) > _MOST_COMPOSED * len(expected):
            return 0.0
        return float(self._normal(answer) == expected)

    def _normal(self, text: str) -> str:
        """Returns a text in the form in which it is compared.

        NFC and NFKC compose at most four characters into one; apart from that, only removing white
        space makes a text shorter.
        """
        config = self._config
        if config.unicode != "exact":
            text = unicodedata.normalize(config.unicode.upper(), text)
        if config.ignore_case:
            text = text.casefold()
        return " ".join(text.split()) if config.ignore_spaces else text.strip()
