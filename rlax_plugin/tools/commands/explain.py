"""``rlax explain``: looks a name up among keys, parts, presets and metrics, and shows what it is.

An objective is shown with its formula, its parts, and one update in numbers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.build import Registry, registry_for, registry_of
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import load_section, overridden
from rlax_plugin.ports.kinds import BY_NAME
from rlax_plugin.run.metrics.names import METRICS, STAGES, Metric
from rlax_plugin.testing.objectives import evaluate_objective, section_of, slots_of, unused_arrays
from rlax_plugin.tools.commands import listing
from rlax_plugin.tools.commands.reference import (
    PARTS,
    Keys,
    built_in,
    part_text,
    parts,
    preset_notes,
    presets_of,
    sections,
    spoken,
)
from rlax_plugin.training.objective.loss import algorithm_of, choices

PREFIX = "rlax.objective"


@dataclass(frozen=True, slots=True)
class Matches:
    """Everything that a name may mean.

    Attributes:
      blocks: keys of sections and parts.
      presets: names of presets.
      metrics: metrics of a stage, or of this name.
    """

    blocks: tuple[Keys, ...]
    presets: tuple[str, ...]
    metrics: tuple[Metric, ...]

    def __bool__(self) -> bool:
        return bool(self.blocks or self.presets or self.metrics)


def explain(
    console: Console, name: str, arguments: Sequence[str] = (), plugins: Sequence[str] = ()
) -> None:
    """Prints what a name means, and all that it may mean if that is several things.

    Args:
      name: a section, key, kind or part, perhaps only its last word; a preset; a metric or a stage;
        or a config, whose own objective is explained.
      arguments: perhaps a config, whose plug-ins are loaded, then ``key=value`` below
        ``rlax.objective`` for a preset.
      plugins: plug-ins to load besides the built-in ones. If these do not have the name, all
        installed plug-ins are loaded.

    Raises:
      ConfigError: there is no such name; or an argument or the config is wrong.
    """
    configs = [word for word in (name, *arguments) if _is_config(word)]
    overrides = [word for word in arguments if "=" in word]
    if unknown := [word for word in arguments if word not in (*configs, *overrides)]:
        raise ConfigError("command line", unknown[0], "must be a config (.yml) or KEY=VALUE")
    listed = {config: load_section(config)[0] for config in configs}
    loaded = (*plugins, *(plugin for section in listed.values() for plugin in section.plugins))
    if name in listed:
        objective = listed[name].objective.model_dump(mode="json", exclude_unset=True)
        show_objective(console, _objective(objective, overrides, loaded))
        return
    if not (matches := find(name, _registry(loaded))):
        loaded += tuple(row["name"] for row in listing.installed_rows() if "offers" in row)
        matches = find(name, _registry(loaded))
    if not matches:
        raise _no_match(name, loaded)
    if overrides and not matches.presets:
        raise ConfigError("command line", overrides[0], f"needs a preset, which {name} is not")
    show_keys(console, matches.blocks)
    for preset in matches.presets:
        show_objective(console, _objective({"preset": preset}, overrides, loaded))
    if matches.metrics:
        _show_metrics(console, matches.metrics)


def _is_config(word: str) -> bool:
    return "=" not in word and word.endswith((".yml", ".yaml"))


def _registry(loaded: Sequence[str]) -> Registry:
    """Returns the built-in parts, those for tests among them, and those of further plug-ins."""
    return registry_of(tuple(dict.fromkeys(loaded))) if loaded else built_in()


def find(wanted: str, registry: Registry | None = None) -> Matches:
    """Looks a name up among sections, keys, kinds, parts, presets, stages and metrics.

    Args:
      wanted: dotted key, with or without the leading ``rlax.`` and the index of a list, or the last
        words of one; or another name. If nothing else has it, a text in a metric's name or meaning.
      registry: the plug-ins; None: the built-in ones and those for tests.
    """
    registry = registry or built_in()
    presets = registry.offers["objective"]
    metrics = tuple(
        metric
        for metric in METRICS
        if wanted in (*_ends(metric.name, "/"), metric.name.partition("/")[0])
        or metric.matches(wanted)
    )
    matches = Matches(
        tuple(_blocks(wanted, registry)), (wanted,) if wanted in presets else (), metrics
    )
    if matches:
        return matches
    texts = [(metric, f"{metric.name} {metric.meaning}") for metric in METRICS]
    return Matches((), (), tuple(metric for metric, text in texts if wanted in text))


def _blocks(wanted: str, registry: Registry) -> Iterator[Keys]:
    """Yields what the config and its parts have of a name."""
    stem = re.sub(r"\.\d+(?=\.|$)", "", wanted).removeprefix("rlax.")
    key = stem if stem == "rlax" else f"rlax.{stem}"
    kinds = {wanted: ""} if wanted in BY_NAME else {}  # kind -> the option of its parts, if one
    blocks = []
    for section in sections():
        if stem in _ends(section.title) or section.title.startswith(f"{key}."):
            blocks.append(section)
            continue
        named = [k for k in section.keys if stem in _ends(k.key) or k.key.startswith(f"{key}.")]
        named += [k for k in section.keys if k.kind == wanted and k not in named]
        kinds |= {k.kind: "" for k in named if k.kind}
        if named:
            blocks.append(replace(section, text="", keys=tuple(named)))
    for place, kind in PARTS.items():
        if key.startswith(f"{place}."):
            kinds[kind] = key.removeprefix(f"{place}.")
    offered = list(parts(registry))
    for kind, part in offered:
        if kind in kinds and (option := _with_option(part, kinds[kind])):
            blocks.append(_titled(kind, option))
    if "objective" in kinds:
        formulas = {
            f"objective {name}": preset.formula for name, preset in presets_of(registry).items()
        }
        blocks = [replace(block, text=formulas.get(block.title, block.text)) for block in blocks]
    if not blocks:  # the name of an option, or of the options that begin with it
        blocks = [_titled(k, option) for k, part in offered if (option := _with_option(part, stem))]
    yield from blocks
    shown = {block.title for block in blocks}
    for kind, part in offered:
        whole = _titled(kind, part)
        if part.title == wanted and kind != "objective" and whole.title not in shown:
            text = part_text(registry, kind, wanted) if BY_NAME[kind].fills_slot else part.text
            yield replace(whole, text=text)


def _with_option(part: Keys, option: str) -> Keys | None:
    """Returns a part with the options of this name, or below it; all of them if it is empty."""
    keys = [key for key in part.keys if f"{key.key}.".startswith(f"{option}.") or not option]
    return replace(part, text="", keys=tuple(keys)) if keys or not option else None


def _ends(name: str, separator: str = ".") -> list[str]:
    """Returns a dotted name and its last words, from all of them to one."""
    words = name.split(separator)
    return [separator.join(words[first:]) for first in range(len(words))]


def _titled(kind: str, part: Keys) -> Keys:
    return replace(part, title=f"{spoken(kind)} {part.title}")


def _no_match(name: str, loaded: Sequence[str]) -> ConfigError:
    keys = [title for s in sections() for title in (s.title, *(key.key for key in s.keys))]
    words = {word for key in keys for word in _ends(key)} | BY_NAME.keys()
    words |= {part.title for _, part in parts(_registry(loaded))}
    words |= {word for metric in METRICS for word in _ends(metric.name, "/")}
    near = difflib.get_close_matches(name, sorted(words), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    reason = f"no key, part, preset or metric has this name; {hint}rlax explain lists them"
    return ConfigError("NAME", name, reason)


# The objective of a config.


def _objective(
    objective: dict[str, Any], overrides: Sequence[str], loaded: Sequence[str]
) -> RlaxSection:
    """Returns a section that sets only the objective; see ``explain``."""
    for override in overrides:
        if not override.startswith(f"{PREFIX}."):
            raise ConfigError("command line", override, f"must be a key below {PREFIX}.")
    content = overridden({"rlax": {"objective": objective}}, overrides)
    return section_of(content["rlax"]["objective"], tuple(dict.fromkeys(loaded)))


# What is printed.


def overview(console: Console) -> None:
    """Prints the names of what can be explained."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_row(Text("sections", "bold"), ", ".join(section.title for section in sections()))
    for kind, offers in registry_of(()).offers.items():
        heading = "presets" if kind == "objective" else kind
        table.add_row(Text(heading, "bold"), ", ".join(offers))
    table.add_row(Text("metrics", "bold"), ", ".join(f"{stage.name}/..." for stage in STAGES))
    console.print(table)
    text = "rlax explain NAME explains one of them, a kind of parts, a key or a metric."
    console.print(f"\n{text}", style="dim")


def show_keys(console: Console, blocks: Sequence[Keys]) -> None:
    """Prints keys as tables, one per section or part."""
    for block in blocks:
        none = "" if block.keys or block.text else "  no options"
        console.print(Text.assemble((block.title, "bold"), none))
        for paragraph in filter(None, block.text.split("\n\n")):
            console.print(Padding(Text(" ".join(paragraph.split())), (0, 0, 0, 2)))
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for key in block.keys:
            name = key.key.removeprefix(f"{block.title}.")
            default = f"default {key.default}" if key.default else "must be given"
            facts = Text(f"{key.type}; {default}")
            table.add_row(Text(f"  {name}"), facts.append(f"\n{key.meaning}", "dim"))
        if block.keys:
            console.print(table)


def _show_metrics(console: Console, metrics: Sequence[Metric]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("metric", "unit", "meaning", "when"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "metric")
    for metric in metrics:
        table.add_row(metric.name, metric.unit, metric.meaning, metric.when)
    console.print(table)


def show_objective(console: Console, section: RlaxSection) -> None:
    """Prints a preset, the section's changes to it, and the worked example."""
    registry = registry_for(section)
    name = section.objective.preset
    preset = presets_of(registry)[name]
    algorithm = algorithm_of(section.objective, preset)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("rlax.objective.", "value", "meaning"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "rlax.objective.")
    for key, kind, choice in choices(algorithm):
        options = registry.options(kind, choice, f"{PREFIX}.{key}")
        text = " ".join(part_text(registry, kind, choice.name).split())
        table.add_row(Text(key, "bold"), Text(choice.name, "bold"), Text(text))
        listing.add_options(table, listing.option_rows(options))
        table.add_row()
    numbers = listing.option_rows(algorithm)
    listing.add_options(
        table,
        {k: row for k, row in numbers.items() if not isinstance(row["value"], Choice | tuple)},
    )
    console.print(Text.assemble((name, "bold"), f"  {preset.title}"))
    if preset.paper:
        console.print(Text(preset.paper, "cyan"))
    if preset.formula:
        console.print(Padding(Text(preset.formula.rstrip()), (1, 2)))
    console.print(table, "")
    for heading, lines in preset_notes(preset):
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        for library, text in lines:
            table.add_row(library or "-", Text(text))
        console.print(Text(heading, "bold"), table, "")
    console.print(worked_example(section))


# Four samples of one prompt: pi_theta/mu of each token.
RATIOS = ((1.1, 1.3, 0.7), (1.0, 0.6), (1.5, 0.95, 1.05, 0.9), (6.0,))
REWARDS = (1.0, 0.0, 0.0, 1.0)
BEHAVIOUR = 0.1  # mu of every token


def worked_example(section: RlaxSection) -> RenderableType:
    """Returns the worked example: one update with four samples, token by token."""
    length = max(map(len, RATIOS))
    mask_bt = np.array([[t < len(row) for t in range(length)] for row in RATIOS])
    ratio_bt = np.array([[*row, *[1.0] * (length - len(row))] for row in RATIOS])
    behaviour_bt = np.full(ratio_bt.shape, np.log(BEHAVIOUR))
    optional = {
        # As if a first update had already gone half of the way.
        "proximal_logprobs_bt": behaviour_bt + np.log(ratio_bt) / 2,
        "reference_logprobs_bt": behaviour_bt,
    }
    slots = slots_of(section)
    if slots.algorithm.entropy_coefficient:
        optional["entropy_bt"] = np.ones(ratio_bt.shape)
    unused = unused_arrays(slots, optional, len(RATIOS))
    evaluation = evaluate_objective(
        section.objective,
        logprobs_bt=behaviour_bt + np.log(ratio_bt),
        behaviour_logprobs_bt=behaviour_bt,
        rewards_b=REWARDS,
        mask_bt=mask_bt,
        group_size=len(RATIOS),
        plugins=section.plugins,
        # The limit matters only if the config asks for a penalty on long samples.
        max_new_tokens=(
            section.rollouts.max_new_tokens if section.objective.overlong.model_fields_set else None
        ),
        **{name: array_bt for name, array_bt in optional.items() if name not in unused},
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("sample", "reward", "pi/mu", "pi/pi_old", "A", "weight", "dL/dlog pi"):
        table.add_column(heading, justify="right")
    for row, t in np.argwhere(mask_bt):
        numbers = (
            evaluation.ratio_bt,
            evaluation.advantages_bt,
            evaluation.weights_bt,
            evaluation.grad_bt,
        )
        table.add_row(
            str(row + 1) if t == 0 else "",
            f"{REWARDS[row]:g}" if t == 0 else "",
            f"{ratio_bt[row, t]:g}",
            *(f"{x_bt[row, t] + 0.0:.4f}" for x_bt in numbers),  # + 0.0: no minus at 0
        )
    metrics = ", ".join(
        f"{name.removeprefix('objective/')} {value:.4g}"
        for name, value in evaluation.metrics.items()
        if name.startswith("objective/")
    )
    return Group(
        Text("Worked example", "bold"),
        table,
        Text(f"\nloss {evaluation.loss:.6g}, which is minimised", "bold"),
        Text(
            "The samples belong to one prompt; each row is a token. mu = 0.1, pi_ref = mu, entropy "
            "1 nat, L_max 4. If the trainer computes pi_old, it is sqrt(pi mu), as in a later "
            "update with the same batch. weight = agg * is * corrections, normalised.",
            "dim",
        ),
        Text(f"metrics: {metrics}", "dim"),
    )
