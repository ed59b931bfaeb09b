"""Deadlines that are too short for a config's work, at the speeds of ``rlax.deadlines.assume``."""

from __future__ import annotations

from rlax_plugin.commands.check.examined import Examined
from rlax_plugin.commands.check.words import Words
from rlax_plugin.fleet.deadlines import Need, Rates, needs, sample_s
from rlax_plugin.text.amounts import in_seconds


def deadlines(config: Examined) -> dict[str, Need]:
    """Returns key below ``rlax.deadlines`` -> its minimum, as far as it is known.

    Deadlines that depend on weights are known once a part has reported their size, and ``group_s``
    once the engine has reported how often it shows progress. If the launcher does not say how many
    workers there will be, one is assumed.
    """
    facts = (config.checked or {}).values()
    sizes = [one.weights_bytes for one in facts if one.weights_bytes is not None]
    silent = [one.silent_tokens for one in facts if one.silent_tokens is not None]
    found = needs(
        config.section,
        Rates.assumed(config.section.deadlines.assume),
        slots=[config.section.rollouts.slots] * (config.workers or 1),
        weights_bytes=max(sizes, default=None),
        silent_tokens=max(silent, default=None),
    )
    if config.checked is None:
        del found["group_s"]
    return found


def in_words(config: Examined) -> Words:
    """Returns title -> text: assumed speeds, minimum deadlines, and the cost of a short drain."""
    section, found = config.section, deadlines(config)
    rates = Rates.assumed(section.deadlines.assume)
    assume, drain_s = section.deadlines.assume, section.deadlines.drain_s
    words = {
        "assumed": f"{assume.tokens_per_s:g} tokens/s per sequence, "
        f"{assume.prefill_tokens_per_s:g} prompt tokens/s per worker, "
        f"{assume.bytes_per_s / 1e6:g} MB/s for weights, {assume.startup_s:g} s to start a worker"
    }
    for name, need in found.items():
        words[name] = f"{need.given_s:g} s; at least {in_seconds(need.needed_s)} are needed"
    if section.rollouts.on_new_weights != "continue" and drain_s < sample_s(
        section, rates, section.rollouts.slots
    ):
        words["drain_s"] = (
            f"{drain_s:g} s may be too short for a preempted worker to finish its samples, which "
            "are then generated again; rlax.rollouts.on_new_weights: continue keeps their tokens"
        )
    return words
