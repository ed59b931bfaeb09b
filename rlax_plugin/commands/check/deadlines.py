"""Deadlines that a config's work cannot hold, at the speeds that ``rlax.deadlines.assume`` says."""

from __future__ import annotations

from rlax_plugin.commands.check.examined import Examined
from rlax_plugin.commands.check.words import Words
from rlax_plugin.rollouts.deadlines import Need, Rates, needs, sample_s
from rlax_plugin.text.amounts import in_seconds


def deadlines(config: Examined) -> dict[str, Need]:
    """Key below ``rlax.deadlines`` -> what it must at least be, as far as it is known.

    What weights take is there once a part has said how large they are, and what a group takes once
    the engine was asked how often it shows progress. Where the launcher does not say how many
    workers there will be, it is one.
    """
    facts = (config.checked or {}).values()
    sizes = [one.weights_bytes for one in facts if one.weights_bytes is not None]
    silent = [one.silent_tokens for one in facts if one.silent_tokens is not None]
    found = needs(
        config.section,
        Rates.assumed(config.section.deadlines.assume),
        workers=config.workers or 1,
        weights_bytes=max(sizes, default=None),
        silent_tokens=max(silent, default=None),
    )
    if config.checked is None:
        del found["group_s"]
    return found


def in_words(config: Examined) -> Words:
    """Title -> text: what is assumed, what follows from it, and what a short ``drain_s`` costs."""
    section, found = config.section, deadlines(config)
    rates = Rates.assumed(section.deadlines.assume)
    assume, drain_s = section.deadlines.assume, section.deadlines.drain_s
    words = {
        "assumed": f"{assume.tokens_per_s:g} tokens/s of a sequence, "
        f"{assume.prefill_tokens_per_s:g} prompt tokens/s of a worker, "
        f"{assume.bytes_per_s / 1e6:g} MB/s of weights, {assume.startup_s:g} s to start a worker"
    }
    for name, need in found.items():
        words[name] = f"{need.given_s:g} s; at least {in_seconds(need.needed_s)} are needed"
    if section.rollouts.on_new_weights != "continue" and drain_s < sample_s(section, rates):
        words["drain_s"] = (
            f"{drain_s:g} s: a worker that is preempted may not finish its samples in that time; "
            "they are then generated again (rlax.rollouts.on_new_weights: continue keeps them)"
        )
    return words
