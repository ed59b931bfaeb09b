"""Warnings about settings that are valid but probably not intended."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psutil

from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.config import lowest
from rlax_plugin.tools.commands.check.examined import Examined
from rlax_plugin.tools.commands.check.words import plural
from rlax_plugin.training.objective.advantages import Outcomes

ConfigWarning = tuple[str, str]
"""A warning: (config key, one sentence)."""

# Up to it, a pretrained model hardly gets to its answer.
_FEW_NEW_TOKENS = 64


def warnings(config: Examined) -> Iterator[ConfigWarning]:
    """Yields warnings about settings that are valid but probably not intended."""
    yield from _warnings_of_groups(config)
    yield from _warnings_of_length(config)
    yield from _warnings_of_rewards(config)
    yield from _warnings_of_memory(config)
    section, evaluation = config.section, config.section.evaluation
    for key in ("run_name", "base_output_directory", "steps"):
        if not config.maxtext.get(key):
            yield key, "is not set, but rlax train needs it, in the config or as key=value"
    if not evaluation.problems:
        yield "rlax.evaluation.problems", "is 0, so progress on held-out problems is not measured"
    elif config.prompts is not None and config.prompts.held_out < evaluation.problems:
        yield (
            "rlax.evaluation.problems",
            f"is {evaluation.problems}, but the split {evaluation.split!r} has "
            f"{config.prompts.held_out} problems, all of which are used",
        )
    if evaluation.problems and evaluation.every and config.workers == 1:
        yield (
            "rlax.evaluation.every",
            f"is {evaluation.every}, but an evaluation during training needs a second worker: with "
            "the one that the launcher starts, each is skipped, unless others join",
        )
    if (window := section.batches.look_ahead) > 1:
        yield (
            "rlax.batches.look_ahead",
            f"is {window}, so samples that are finished early train more often: compare "
            "length/trained_mean with length/issued_mean",
        )
    if section.objective.allow_uncorrected:
        yield (
            "rlax.objective.allow_uncorrected",
            "is true, so off-policy samples may train without a correction",
        )
    if section.deterministic:
        yield "rlax.deterministic", "is true, so groups are decoded one at a time, which is slow"


def _warnings_of_groups(config: Examined) -> Iterator[ConfigWarning]:
    section, rollouts = config.section, config.section.rollouts
    size, filters = rollouts.group_size, section.curation.filters
    if size > 1 and not filters and not _advantages(config, [1.0] * size, [0] * size).any():
        yield (
            "rlax.curation.filters",
            "is empty, so groups whose rewards are all equal take up rows of the batch and teach "
            "nothing; a filter can reject them (rlax explain filters)",
        )
    needed = config.samples * section.staleness.steps_ahead * section.curation.oversample
    if config.workers and rollouts.slots * config.workers >= 2 * needed:
        yield (
            "rlax.rollouts.slots",
            f"is {rollouts.slots} on {plural(config.workers, 'worker')}, but at most "
            f"{needed:,.0f} samples are outstanding, so at least half of the slots stay empty",
        )
    if 0 < lowest(rollouts.temperature) < 0.5 and size > 1:
        yield (
            "rlax.rollouts.temperature",
            f"is {rollouts.temperature:g}, which makes the samples of a group alike",
        )


def _warnings_of_memory(config: Examined) -> Iterator[ConfigWarning]:
    """Yields warnings about the memory of trainer and workers that run on this machine's CPU."""
    checked = config.checked or {}
    if config.maxtext.get("hardware") != "cpu" or not checked:
        return
    engine = "rlax.rollouts.engine"
    needed = {
        key: sum(facts.memory.values()) * ((config.workers or 1) if key == engine else 1)
        for key, facts in checked.items()
    }
    total, there = sum(needed.values()), psutil.virtual_memory().total
    if total > there:
        yield (
            max(needed, key=needed.__getitem__),
            f"needs most of the {in_bytes(total)} that trainer and workers need in total, without "
            f"activations, but this machine has {in_bytes(there)}",
        )


def _warnings_of_rewards(config: Examined) -> Iterator[ConfigWarning]:
    curation = config.section.curation
    sets = config.section.evaluation.sets.values()
    most = max(config.section.most_rewards, *(len(s.rewards) for s in sets), 0)
    if most > 1 and "pass_threshold" not in curation.model_fields_set:
        yield (
            "rlax.curation.pass_threshold",
            f"is left at {curation.pass_threshold:g}, and a sample passes if the sum of its {most} "
            "rewards reaches it; set it to the smallest sum that counts as a right answer",
        )


def _advantages(config: Examined, rewards: list[float], groups: list[int]) -> np.ndarray:
    """Computes the advantages of samples of one token."""
    lengths_n = np.ones(len(rewards), int)
    outcomes = Outcomes(np.array(rewards), lengths_n, np.array(groups))
    return np.asarray(config.slots.recorded_advantages(outcomes))


def _warnings_of_length(config: Examined) -> Iterator[ConfigWarning]:
    section, maxtext = config.section, config.maxtext
    tokens = section.rollouts.max_new_tokens
    loaded = maxtext.get("load_parameters_path") or maxtext.get("load_full_state_path")
    pretrained = bool(loaded) or maxtext.get("model_name", "default") != "default"
    if pretrained and tokens <= _FEW_NEW_TOKENS:
        yield (
            "rlax.rollouts.max_new_tokens",
            f"is {tokens}, which is short for the answers of a pretrained model",
        )
    if config.prompts is None:
        return
    groups = config.groups
    if groups is not None and 0 < groups < config.prompts.train:
        yield (
            "steps",
            f"is {config.maxtext['steps']}, which makes {groups:,} groups, fewer than the "
            f"{config.prompts.train:,} training prompts, so some prompts are never used",
        )
    limit, longest = section.rollouts.max_prompt_tokens, config.prompts.longest
    if limit > max(2 * longest, longest + 16):
        yield (
            "rlax.rollouts.max_prompt_tokens",
            f"is {limit}, but the longest prompt has {longest} tokens; the rest of every row is "
            "padding",
        )
