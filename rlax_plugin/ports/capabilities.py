"""Capabilities of a rollout engine, which its worker reports when it registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from rlax_plugin.errors import PluginError
from rlax_plugin.ports.engine_abilities import TokenScorer
from rlax_plugin.types import SideSpec

Verification = Literal["none", "checksums", "fingerprints", "canary"]
VERIFICATIONS: tuple[Verification, ...] = get_args(Verification)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities that an engine declares. A run rejects a worker that lacks a required one.

    Attributes:
      slots: sequences decoded at the same time, at least 1.
      vocabulary: size of the vocabulary, every token id is below it; 0: not known yet. Prompts are
        checked against it, and samples where the trainer does not know its own.
      context_tokens: maximum length of one sequence, prompt and completion together; 0: no limit
        beyond the run's own. Longer requests go to other workers.
      seeded: True if a request's seed and the weights determine a sample's tokens.
      logprobs: True if a sample's log-probs are those of its tokens; training needs them.
      resumes: True if it continues after the tokens of ``Request.resume``. Other engines receive
        such a group without these tokens.
      scores: True if it computes the log-probs of given tokens. Need not be declared: it follows
        from the engine being a ``TokenScorer``.
      stop_strings: True if it ends a sample at ``SamplingParams.stop_strings``.
      verification: the most thorough check of new weights that its worker can do. Need not be
        declared by a ``TokenScorer``, whose worker verifies the ``canary`` of each version; for
        other engines it is at most ``fingerprints``.
      side: name -> side channel that its samples have.
    """

    slots: int
    vocabulary: int = 0
    context_tokens: int = 0
    seeded: bool = False
    logprobs: bool = False
    resumes: bool = False
    scores: bool = False
    stop_strings: bool = False
    verification: Verification = "none"
    side: Mapping[str, SideSpec] = field(default_factory=dict)


def capabilities_of(engine: object) -> Capabilities:
    """The current capabilities of an engine: those declared and those its methods imply.

    Raises:
      PluginError: the engine declares no capabilities.
    """
    found = getattr(engine, "capabilities", None)
    if not isinstance(found, Capabilities):
        what = f"rollout engine {type(engine).__name__}: capabilities is {found!r}"
        raise PluginError(f"{what}, expected an rlax_plugin.api.Capabilities")
    scores = isinstance(engine, TokenScorer)
    declared = "fingerprints" if found.verification == "canary" else found.verification
    return replace(found, scores=scores, verification="canary" if scores else declared)
