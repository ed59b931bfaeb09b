"""Checks before a run starts, beyond a valid config; ``rlax check`` makes the same checks.

They start no process and write no results. ``rlax eval`` and ``rlax serve RUN`` do not train: their
sampling may be truncated, and a run's own directories exist already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.base.files.places import check_readable, check_writable
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.build import Registry
from rlax_plugin.config import SINGLE_TURN, RlaxSection, highest, lowest
from rlax_plugin.config.handing import to_bytes
from rlax_plugin.config.identity import config_hash
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.reward.functions.copies import read_functions
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity
from rlax_plugin.run.metrics.exporter import prometheus_token
from rlax_plugin.run.start.prior import check_prior, kept_prior
from rlax_plugin.run.start.run_directory import (
    BASE_KEY,
    check_same_run,
    first_weights,
    has_adapters,
    state_directory,
    weights_directory,
)
from rlax_plugin.run.state.journal import check_format
from rlax_plugin.training.objective import advantages
from rlax_plugin.training.objective.batches import ARRAYS, HOST_ARRAYS
from rlax_plugin.training.objective.loss import ObjectiveSlots


def check_start(
    config: ResolvedConfig, registry: Registry, *, remote: bool
) -> tuple[ObjectiveSlots, list[tuple[str, str]]]:
    """Makes all quick checks; builds only the objective.

    Args:
      remote: True if URLs are checked; see ``check_places``.

    Returns:
      The objective's slots, and warnings of the parts: (config key, one sentence).

    Raises:
      ConfigError, PluginError, TrainingError: the first error found.
    """
    section, maxtext = config.section, config.maxtext
    registry.validate(section)
    _check_training(section, maxtext)
    to_bytes(config)  # workers can be given it
    context = BuildContext.outside_run(section, config)
    slots = registry.slots(context)
    own = registry.slots_of_environments(context, slots)
    for name, one in section.by_environment.items():
        its_slots = own.get(name, slots)
        advantages.probe(its_slots.recorded_advantages, section.rollouts.group_size)
        with section.keys_of(name):
            _check_learning(one, its_slots)
    # Before its file system is looked for: installing that would not help.
    registry.check_part("weight_store", section.weights.store, "rlax.weights.store", context)
    check_places(section, maxtext, remote=remote)
    _check_transfer(section, maxtext)
    if section.network.prometheus_port is not None:
        prometheus_token(section.network)
    if section.network.tls.given:
        OperatorIdentity(section.network.tls, [section.network.place.reached_at])
    found = registry.check_start(section, context)
    return slots, [*config.warnings, *_warnings_of_values(section, slots), *found]


def _warnings_of_values(section: RlaxSection, slots: ObjectiveSlots) -> list[tuple[str, str]]:
    """Warns of advantages that a critic is meant for, where no signal can be one."""
    try:
        if section.signals or not advantages.reads_values(
            slots.advantages, section.rollouts.group_size
        ):
            return []
    except (ConfigError, TrainingError):  # such samples are not what the advantage is made for
        return []
    name = slots.algorithm.advantage.name if slots.algorithm.advantage else ""
    key, advantage = "rlax.objective.advantage", f"is {name}, which"
    if section.objective.advantage is None:
        key = "rlax.objective.preset"
        advantage = f"is {section.objective.preset}, whose advantage {name}"
    text = (
        f"{advantage} reads the values of a critic, and there is none, so every value is 0: "
        "set rlax.signals: [{name: critic}] (docs/critic.md)"
    )
    return [(key, text)]


def _check_learning(section: RlaxSection, slots: ObjectiveSlots) -> None:
    """Checks that rewards can influence the loss, unless another term of it trains the model.

    Raises:
      ConfigError: every reward would be 0, or every advantage the same.
    """
    algorithm = slots.algorithm
    if section.signals or algorithm.grad_2.name != "none":
        return
    if not section.several_turns and not any(
        lowest(choice.weight) or highest(choice.weight) for choice in section.rewards
    ):
        last = len(section.rewards) - 1
        reason = (
            "must not be 0 for every reward: the reward of each sample would be 0, and nothing "
            f"would be learned (rlax.environment {SINGLE_TURN} pays no rewards of its own)"
        )
        raise ConfigError(f"rlax.rewards.{last}.weight", section.rewards[last].weight, reason)
    if section.rollouts.group_size == 1 and advantages.compares_groups(slots.recorded_advantages):
        name = algorithm.advantage.name if algorithm.advantage else ""
        raise ConfigError(
            "rlax.rollouts.group_size",
            1,
            f"must be at least 2 with rlax.objective.advantage = {name}, which compares the "
            "samples of a group: every advantage would be the same. Or choose an "
            "advantage without a baseline of the group (rlax explain advantage)",
        )


def _check_training(section: RlaxSection, maxtext: Mapping[str, Any]) -> None:
    """Checks that the section describes a training that is possible on this machine.

    Args:
      maxtext: MaxText's keys; ``steps`` may be missing.

    Raises:
      ConfigError: samples would come from another distribution than the trained one, a batch
        would not fit into memory, or ``steps`` is not a multiple of the updates per RL step.
    """
    _check_sampling(section)
    _check_memory(section)
    updates = section.objective.updates_per_step
    if (steps := maxtext.get("steps")) is not None and steps % updates:
        raise ConfigError(
            "steps",
            steps,
            f"counts updates and must be a multiple of the {updates} of a batch "
            "(rlax.objective.epochs * mini_batches)",
        )


def _check_sampling(section: RlaxSection) -> None:
    rollouts = section.rollouts
    whole = {"temperature": lowest(rollouts.temperature) > 0, "top_k": not rollouts.top_k}
    right = {"temperature": "above 0", "top_k": "0", "top_p": "1.0"}
    for name, holds in (whole | {"top_p": rollouts.top_p == 1}).items():
        if not holds:
            raise ConfigError(
                f"rlax.rollouts.{name}",
                getattr(rollouts, name),
                f"must be {right[name]} to train: the trainer computes log-probs of the full "
                "distribution, which do not match such samples; rlax eval and rlax serve RUN "
                "allow it",
            )


def _check_memory(section: RlaxSection) -> None:
    """Checks that a whole batch, which the controller lays out, fits into this machine's memory."""
    rows, length = section.batch_rows, section.row_tokens
    a_token = sum(spec.bytes_per_position for spec in (ARRAYS | HOST_ARRAYS).values())
    needed, there = rows * length * a_token, psutil.virtual_memory().total
    if needed <= there:
        return
    rollouts = section.rollouts
    factors = {
        "rollouts.groups_per_step": rollouts.groups_per_step,
        "rollouts.group_size": rollouts.group_size,
        "rollouts.max_prompt_tokens": rollouts.max_prompt_tokens,
        "rollouts.max_new_tokens": rollouts.max_new_tokens,
    }
    if section.batches.rows:
        del factors["rollouts.groups_per_step"], factors["rollouts.group_size"]
        factors["batches.rows"] = section.batches.rows
    largest = max(factors, key=factors.__getitem__)
    raise ConfigError(
        f"rlax.{largest}",
        factors[largest],
        f"makes batches of {rows:,} rows of {length:,} tokens, whose arrays take "
        f"{in_bytes(needed)}; this machine has {in_bytes(there)} of memory",
    )


def check_places(section: RlaxSection, maxtext: Mapping[str, Any], *, remote: bool = True) -> None:
    """Checks that the inputs of a run exist, and that its outputs can be written.

    Args:
      maxtext: MaxText's keys; without ``run_name`` and ``base_output_directory`` the run's
        directory is not checked.
      remote: True if URLs are checked, each within ``rlax.deadlines.rpc_s``.

    Raises:
      ConfigError: names the first place that cannot be read or written.
    """
    deadline_s = section.deadlines.rpc_s
    base, name = maxtext.get("base_output_directory"), maxtext.get("run_name")
    written = {"rlax.weights.path": section.weights.path, "rlax.state_dir": section.state_dir}
    goes_on = has_prior = False
    if base and name:
        run = f"{base.rstrip('/')}/{name}"
        _check_written("base_output_directory", base, run, deadline_s, remote=remote)
        files = RunFiles(run)
        if not section.state_dir and not files.is_local:
            written["rlax.state_dir"] = str(state_directory(section, files))
        goes_on = (files.is_local or remote) and bool(files.names("checkpoints"))
        has_prior = (files.is_local or remote) and kept_prior(files)
    for key, path in written.items():
        if path:
            check_writable(key, path, deadline_s, remote=remote, private=True)
    read = {
        "rlax.objective.reference.path": section.objective.reference.path,
        "rlax.curation.only": section.curation.only,
    }
    if not goes_on:  # else training starts from its own checkpoint, wherever it began
        read |= first_weights(maxtext)
    if has_adapters(maxtext):  # checkpoints of adapters have no base
        read[BASE_KEY] = str(maxtext.get(BASE_KEY) or "")
    for key, path in read.items():
        if path and (remote or "://" not in path):
            check_readable(key, path, deadline_s)
    prior = section.curation.prior.path
    if prior and not has_prior and (remote or "://" not in prior):
        check_readable("rlax.curation.prior.path", prior, deadline_s)
        check_prior(section)


def check_own_run(config: ResolvedConfig, argv: Sequence[str]) -> None:
    """Checks that the run's directory, if it is local, holds no run of another config.

    Args:
      argv: arguments of the command, for messages.

    Raises:
      RlaxError: ``rlax train`` would say the same of the directory, or of a function's file.
    """
    base, name = (config.maxtext.get(key) for key in ("base_output_directory", "run_name"))
    if not (base and name):
        return
    files = RunFiles(f"{base.rstrip('/')}/{name}")
    if files.is_local:
        config, _ = read_functions(config, files, state_directory(config.section, files))
        check_format(files)
        check_same_run(files, config_hash(config.content), config.content, argv)


def _check_transfer(section: RlaxSection, maxtext: Mapping[str, Any]) -> None:
    """Checks that the parameter server can send weights, if workers are to receive them from it.

    Raises:
      ConfigError: they are on an object store.
    """
    base, name = maxtext.get("base_output_directory"), maxtext.get("run_name")
    if section.weights.transfer == "path" or not (section.weights.path or (base and name)):
        return
    place = weights_directory(section, RunFiles(f"{base or '.'}/{name or ''}"))
    if "://" in place:
        reason = (
            f"must be path: the weights are on an object store, {place}, which each worker reads "
            "by itself"
        )
        raise ConfigError("rlax.weights.transfer", section.weights.transfer, reason)


def _check_written(key: str, base: str, run: str, deadline_s: float, *, remote: bool) -> None:
    """Checks the run's directory; an error shows the config key and value that the user set."""
    try:
        check_writable(key, run, deadline_s, remote=remote, private=True)
    except ConfigError as error:
        raise ConfigError(key, base, error.reason) from None
