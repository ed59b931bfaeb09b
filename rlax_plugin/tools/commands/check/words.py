"""Describes a config in words, and its batch arithmetic in numbers."""

from __future__ import annotations

from collections.abc import Collection

from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.config import Evaluation
from rlax_plugin.rollout.fleet.deadlines import Need, Rates, needs, sample_s
from rlax_plugin.run.start.schedules import schedules_of
from rlax_plugin.tools.commands.check.examined import Examined
from rlax_plugin.training.objective.loss import choices

Words = dict[str, str]


def words(config: Examined) -> dict[str, Words]:
    """Returns heading -> title -> text."""
    return {
        "Processes": _processes(config),
        "One step": _one_step(config),
        "The run": _run(config),
        "Staleness": {"staleness": _staleness(config)},
        "Objective": _objective(config),
        **({"Schedules": scheduled} if (scheduled := _schedules(config)) else {}),
        "Files": _files(config),
        **{key: dict(facts.says) for key, facts in (config.checked or {}).items() if facts.says},
        "Deadlines": _deadlines(config),
    }


def numbers(config: Examined) -> dict[str, int | float]:
    """Returns the arithmetic of batches as numbers; unknown numbers are left out."""
    section, steps = config.section, config.rl_steps
    rollouts, samples = section.rollouts, config.samples
    found: dict[str, int | float | None] = {
        "workers": config.workers,
        "groups_per_step": rollouts.groups_per_step,
        "samples_per_step": samples,
        "rows_per_step": section.batch_rows,
        "row_tokens": section.row_tokens,
        "completion_tokens_per_step": config.sampled_tokens,
        "updates_per_step": section.objective.updates_per_step,
        "rl_steps": steps,
        "groups": config.groups,
    }
    if config.prompts is not None:
        found["training_prompts"] = config.prompts.train
        found["epochs"] = config.groups and config.groups / config.prompts.train
    return {name: number for name, number in found.items() if number is not None}


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _processes(config: Examined) -> Words:
    section, workers = config.section, config.workers
    network, weights = section.network, section.weights
    port = f"port {network.port}" if network.port else "any free port"
    if network.prometheus_port is not None:
        port += f"; /metrics on {network.prometheus_port or 'any free port'}"
    where = network.host
    if network.advertised_host:
        where += f", reached at {network.advertised_host}"
    slots = f"{section.rollouts.engine.name}, {plural(section.rollouts.slots, 'slot')} each"
    rewards = "; ".join(
        f"{one.reward_processes}{name and f' for {name}'}: {', '.join(map(str, one.rewards))}"
        for name, one in section.by_environment.items()
    )
    server = weights.parameter_server
    return {
        "trainer": f"1: {section.trainer.name}, with the controller on {where}, {port}",
        "rollout workers": f"{workers or 'as many as join'}: {slots}; launcher "
        f"{section.launcher.name}",
        "reward processes": f"{rewards}; at most {section.deadlines.reward_s:g} s per call",
        "parameter server": ("in the trainer process" if server == "embedded" else f"at {server}")
        + (", which streams weights to the workers" if weights.transfer == "stream" else ""),
    }


def _one_step(config: Examined) -> Words:
    section = config.section
    rollouts, batches = section.rollouts, section.batches
    samples = config.samples
    trained = config.sampled_tokens * section.samples_selected // rollouts.group_size
    what = "episode" if section.several_turns else "completion"
    words = {
        "samples": f"{rollouts.groups_per_step:,} groups x {rollouts.group_size} = {samples:,} "
        f"samples of at most {rollouts.max_new_tokens:,} tokens, at temperature "
        f"{rollouts.temperature:g}",
        "batch": f"{plural(section.batch_rows, 'row')} of {section.row_tokens:,} tokens (prompt "
        f"{rollouts.max_prompt_tokens:,} + {what} {section.episode_tokens:,}): at most "
        f"{trained:,} tokens are trained on",
    }
    if (selection := section.curation.selection) is not None:
        words["batch"] += f"; {selection.name} selects the samples that train"
    for name, one in section.by_environment.items():
        if one.several_turns:
            words[f"episodes of {name}" if name else "episodes"] = (
                f"{one.environment.name}: at most {plural(one.episodes.max_turns, 'answer')}, "
                f"{one.episode_tokens:,} tokens after the prompt of a trajectory and "
                f"{one.episode_trajectories:,} trajectories"
            )
    if batches.sequences_per_row > 1:
        words["batch"] += f"; up to {batches.sequences_per_row} samples are packed into a row"
    if batches.shared_prompts:
        words["batch"] += ", and those of one group share their prompt"
    if batches.tokens:
        words["batch"] += f"; a batch is complete with {batches.tokens:,} completion tokens"
    objective = section.objective
    words["updates"] = (
        f"{objective.epochs} epoch(s) x {objective.mini_batches} mini-batch(es) = "
        f"{plural(objective.updates_per_step, 'update')}; then one weight version"
    )
    return words


def _run(config: Examined) -> Words:
    section, steps = config.section, config.rl_steps
    evaluation, source = section.evaluation, section.prompt_source.name
    words = {}
    if steps is not None and (groups := config.groups) is not None:
        updates = plural(config.maxtext["steps"], "update")
        words["steps"] = f"{updates} = {plural(steps, 'RL step')}, {groups:,} groups"
        if config.prompts is not None:
            epochs = groups / config.prompts.train
            words["steps"] += f", {epochs:.3g} times the {config.prompts.train:,} prompts"
    words["prompts"] = f"{source}, chosen by {section.curation.sampler.name}"
    if several := section.environments:
        whole = sum(one.weight for one in several.values())
        shares = [
            f"{name} {one.weight / whole:.1%}: {one.prompt_source.name}"
            for name, one in several.items()
        ]
        words["prompts"] = f"{', '.join(shares)}; chosen by {section.curation.sampler.name}"
    if section.trains_on_log:
        words["prompts"] = f"logged samples of {section.logged_samples.path}, in their order"
    if stages := section.curation.stages:
        words["prompts"] += f", with other weights of domains in {plural(len(stages), 'stage')}"
    filters = ", ".join(choice.name for choice in section.curation.filters)
    words["prompts"] += f"; {filters} must accept a group" if filters else "; no group is rejected"
    if config.prompts is not None and config.prompts.notes:
        words["prompts"] += f"; {'; '.join(config.prompts.notes)}"
    words["evaluation"] = _evaluation(evaluation, section.environments)
    if config.section.observers:
        words["observers"] = ", ".join(choice.name for choice in config.section.observers)
    return words


def _evaluation(evaluation: Evaluation, several: Collection[str]) -> str:
    if not evaluation.problems:
        return "none"
    total = evaluation.problems * evaluation.samples
    split = f"{evaluation.split} of each of {', '.join(several)}" if several else evaluation.split
    total *= len(several) or 1
    measures = [f"pass@{k}" for k in evaluation.k]
    measures += [f"majority@{k}" for k in evaluation.majority_k]
    often = f"every {evaluation.every} steps, " if evaluation.every else ""
    more = f"; further sets: {', '.join(evaluation.sets)}" if evaluation.sets else ""
    return (
        f"{often}before and after training: {evaluation.problems:,} problems of "
        f"{split} x {evaluation.samples} samples = {total:,} completions, "
        f"{', '.join(measures)}{more}"
    )


def _staleness(config: Examined) -> str:
    section = config.section
    j, k = section.staleness.reload_every, section.staleness.max_staleness
    if section.trains_on_log:
        return "none: the samples were logged, by weights of another run"
    if (j, k) == (1, 1):
        return "lockstep, on-policy: each batch is generated with the weights that it updates"
    name = "one step off-policy" if (j, k) == (1, 2) else "off-policy"
    reload = "every version" if j == 1 else f"one of {j} versions"
    arriving = {
        "finish": "are finished with the old ones",
        "continue": "continue with the new ones",
        "discard": "are restarted",
    }[section.rollouts.on_new_weights]
    return (
        f"{name}: workers load {reload}, and a sample can train if its oldest token was generated "
        f"at most {plural(k - 1, 'version')} before the weights that its update starts from "
        f"(staleness {k}); groups for up "
        f"to {plural(section.staleness.steps_ahead, 'step')} are outstanding, including the next "
        f"batch; when new weights arrive, unfinished samples {arriving}"
    )


def _objective(config: Examined) -> Words:
    section, algorithm = config.section, config.slots.algorithm
    parts = {key: choice.plain_name for key, _, choice in choices(algorithm)}
    corrections = [name for key, name in parts.items() if key.startswith("corrections")]
    shown = {k: v for k, v in parts.items() if "corrections" not in k and v not in ("one", "none")}
    policy = {
        "sampler": "the sampler's own log-probs",
        "reprefill": "computed again by the trainer, with the weights that generated the sample if "
        "the trainer still has them",
        "proximal": "computed by the trainer, with the weights before the batch's first update",
    }[algorithm.old_policy]
    words = {
        "preset": f"{section.objective.preset}: "
        + ", ".join(f"{slot} {name}" for slot, name in shown.items()),
        "old policy": policy,
        "corrections": ", ".join(corrections) or "none",
    }
    kl = algorithm.kl
    words["KL"] = "none, and no reference policy is kept"
    if config.slots.needs_reference:
        words["KL"] = f"{kl.coefficient:g} x {kl.estimator} to the reference, in the {kl.placement}"
    if kl.adaptive is not None:
        words["KL"] += (
            f"; the coefficient changes so that the KL is {kl.adaptive.target:g} nats per "
            f"{kl.adaptive.per}"
        )
    if algorithm.entropy_coefficient:
        words["entropy"] = f"bonus of {algorithm.entropy_coefficient:g} per nat"
    if algorithm.overlong.penalty:
        words["overlong"] = f"up to {algorithm.overlong.penalty:g} is subtracted from the reward"
    if algorithm.mask_truncated:
        words["truncated samples"] = "do not train"
    return words


def _schedules(config: Examined) -> Words:
    """Returns key -> values at the first, the middle and the last step of the run."""
    words = {}
    for key, schedule in schedules_of(config.registry, config.section).items():
        last = config.rl_steps or schedule.steps + 1
        steps = sorted({1, (last + 1) // 2, last})
        values = ", ".join(f"{schedule.at(step):.4g} at step {step:,}" for step in steps)
        words[key] = f"{schedule}: {values}"
    return words


def _files(config: Examined) -> Words:
    section, maxtext = config.section, config.maxtext
    base = str(maxtext.get("base_output_directory") or "base_output_directory")
    run = f"{base.rstrip('/')}/{maxtext.get('run_name') or 'run_name'}"
    weights = section.weights
    words = {
        "run": run,
        "weights": f"{weights.path or f'{run}/weights'}, {weights.store.name}, the newest "
        f"{plural(weights.keep, 'version')}{', rounded to bfloat16' if weights.rounded else ''}",
    }
    if section.state_dir:
        words["ledger and logs"] = section.state_dir
    words["metrics"] = ", ".join(["metrics.jsonl", *(c.name for c in section.trackers)])
    return words


def deadlines(config: Examined) -> dict[str, Need]:
    """Returns key below ``rlax.deadlines`` -> its minimum, as far as it is known.

    Deadlines that depend on weights are known once a part has reported their size, and ``group_s``
    once the engine has reported how often it shows progress. If the launcher does not say how many
    workers there will be, one is assumed.
    """
    facts = (config.checked or {}).values()
    sizes = [one.weights_bytes for one in facts if one.weights_bytes is not None]
    silent = [one.silent_tokens for one in facts if one.silent_tokens is not None]
    minimums = needs(
        config.section,
        Rates.assumed(config.section.deadlines.assume),
        slots=[config.section.rollouts.slots] * (config.workers or 1),
        weights_bytes=max(sizes, default=None),
        silent_tokens=max(silent, default=None),
    )
    if config.checked is None:
        del minimums["group_s"]
    return minimums


def _deadlines(config: Examined) -> Words:
    """Returns title -> text: assumed speeds, minimum deadlines, and the cost of a short drain."""
    section = config.section
    rates = Rates.assumed(section.deadlines.assume)
    assume, drain_s = section.deadlines.assume, section.deadlines.drain_s
    words = {
        "assumed": f"{assume.tokens_per_s:g} tokens/s per sequence, "
        f"{assume.prefill_tokens_per_s:g} prompt tokens/s per worker, "
        f"{assume.bytes_per_s / 1e6:g} MB/s for weights, {assume.startup_s:g} s to start a worker"
    }
    for name, need in deadlines(config).items():
        words[name] = f"{need.given_s:g} s; at least {in_seconds(need.needed_s)} are needed"
    if section.rollouts.on_new_weights != "continue" and drain_s < sample_s(
        section, rates, section.rollouts.slots
    ):
        words["drain_s"] = (
            f"{drain_s:g} s may be too short for a preempted worker to finish its samples, which "
            "are then generated again; rlax.rollouts.on_new_weights: continue keeps their tokens"
        )
    return words
