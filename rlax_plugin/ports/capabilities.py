"""Capabilities of a rollout engine, which its worker reports when it registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlax_plugin.base.types import NATIVE, SideSpec


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
      scores: True if it computes the log-probs of given tokens (``RolloutEngine.score``), so that
        its worker verifies the canary of each weight version.
      stop_strings: True if it ends a sample at ``SamplingParams.stop_strings``.
      side: name -> side channel that its samples have.
      weights_format: format of the parts that ``RolloutEngine.load`` is given: ``native`` or
        ``safetensors``. The trainer's side converts each version to it while such a worker is
        registered. Parts in memory are native only.
    """

    slots: int
    vocabulary: int = 0
    context_tokens: int = 0
    seeded: bool = False
    logprobs: bool = False
    resumes: bool = False
    scores: bool = False
    stop_strings: bool = False
    side: Mapping[str, SideSpec] = field(default_factory=dict)
    weights_format: str = NATIVE
