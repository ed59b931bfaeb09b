"""What a program that has played an episode over HTTP says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.ports.environment import Outcome
from rlax_plugin.rollout.http.episode import Access

_FIELDS = ("reward", "rewards", "text", "ended", "metrics")
_EXCERPT = 100  # characters of a name


def outcome_of(reply: Any, access: Access, *, needs_reward: bool) -> Outcome:
    """Returns the outcome of an episode, from the JSON that its program has replied.

    Args:
      reply: an object with any of ``reward``, ``rewards``, ``text``, ``ended`` and ``metrics``, see
        ``Outcome``; not checked yet.
      access: the episode's; its counts of requests become metrics.
      needs_reward: True if a reply without ``reward`` and ``rewards`` is none.

    Raises:
      ValueError: it is no outcome; says what was replied.
    """
    if not isinstance(reply, Mapping):
        raise ValueError("JSON that is not an object, and it must be an object")
    if unknown := sorted(set(reply) - set(_FIELDS)):
        name, known = one_line(str(unknown[0]), _EXCERPT), ", ".join(_FIELDS)
        raise ValueError(f"the unknown field {name!r}: there are {known}")
    found = {name: value for name, value in reply.items() if value is not None}
    reward, rewards = found.get("reward"), found.get("rewards")
    if reward is None and not rewards and needs_reward:
        raise ValueError("neither reward nor rewards, and rlax.rewards is empty")
    if not isinstance(rewards, list | None) or not all(map(_is_number, rewards or ())):
        raise ValueError("rewards that are no list of finite numbers, one for each answer")
    if reward is not None and not _is_number(reward):
        raise ValueError("a reward that is no finite number")
    if rewards and not access.in_order:
        reason = "answers were sampled at the same time, or one reached no client"
        raise ValueError(f"rewards, and their order is not known, as {reason}: reply reward")
    text, ended = found.get("text"), found.get("ended", "done")
    if not isinstance(text, str | None):
        raise ValueError("a text that is no text")
    if ended not in ("done", "cut"):
        raise ValueError("an ended that is neither done nor cut")
    metrics = found.get("metrics", {})
    if not isinstance(metrics, Mapping) or not all(map(_is_number, metrics.values())):
        raise ValueError("metrics that are no object with finite numbers")
    counted = request_metrics(access)
    own = {str(name): float(value) for name, value in metrics.items()}
    if taken := sorted(counted.keys() & own.keys()):
        raise ValueError(f"the metric {taken[0]!r}, which is counted here: give it another name")
    paid = tuple(map(float, rewards or ()))
    return Outcome(text, paid, ended, {**counted, **own}, float(reward or 0.0))


def request_metrics(access: Access) -> dict[str, float]:
    """Returns the metrics that count an episode's requests by kind."""
    return {f"requests_{kind}": float(count) for kind, count in access.requests.items()}


def _is_number(value: Any) -> bool:
    """True of a finite number that a float holds; True and False are none."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False
