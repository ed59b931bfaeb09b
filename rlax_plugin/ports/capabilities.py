"""What a rollout engine can do: declared by the engine, told by its worker when it registers."""

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
    """What an engine declares. A run rejects a worker that lacks what the run needs.

    Attributes:
      slots: sequences that it decodes at once, at least 1.
      vocabulary: token ids are below it; 0: not known yet. Prompts and samples are held against it.
      context_tokens: of one sequence, prompt and completion together, at most; 0: no limit beyond
        the run's own. Longer requests go to other workers.
      seeded: a request's seed and the weights decide a sample's tokens.
      logprobs: a sample's log-probs are those of its tokens; training needs them.
      resumes: it goes on behind the tokens of ``Request.resume``. Other engines are sent such
        a group without them.
      scores: it computes the log-probs of given tokens. Need not be declared: it is so if the
        engine is a ``TokenScorer``.
      stop_strings: it ends a sample at ``SamplingParams.stop_strings``.
      verification: how thoroughly its worker can verify new weights. Need not be declared by a
        ``TokenScorer``, whose worker verifies the ``canary`` of each version; of other engines it
        is ``fingerprints`` at most.
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
    """What an engine can do, now: what it declares, and what follows from its methods.

    Raises:
      PluginError: it declares nothing.
    """
    found = getattr(engine, "capabilities", None)
    if not isinstance(found, Capabilities):
        what = f"rollout engine {type(engine).__name__}: capabilities is {found!r}"
        raise PluginError(f"{what}, expected an rlax_plugin.api.Capabilities")
    scores = isinstance(engine, TokenScorer)
    declared = "fingerprints" if found.verification == "canary" else found.verification
    return replace(found, scores=scores, verification="canary" if scores else declared)
