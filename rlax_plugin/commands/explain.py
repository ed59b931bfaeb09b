"""The text of ``rlax objective``: presets, the parts in their slots, and one update in numbers.

``docs/objectives.md`` contains the output of ``markdown``, so both stay in step with the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlax_plugin.build import NotLoadedError, Registry, registry_for
from rlax_plugin.config import SLOTS, Algorithm, Choice, NoOptions, RlaxSection, Schedule
from rlax_plugin.config.loading import load_section, overridden
from rlax_plugin.config.validation import yaml_text
from rlax_plugin.errors import ConfigError
from rlax_plugin.metrics.dashboard import sparkline
from rlax_plugin.objective.loss import algorithm_of, choices
from rlax_plugin.objective.presets import Preset
from rlax_plugin.ports.kinds import ALL
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing.objectives import (
    evaluate_objective,
    section_of,
    slots_of,
    unused_arrays,
)
from rlax_plugin.text.markdown import markdown_table

KINDS = tuple(kind.name for kind in ALL if kind.fills_slot)
PREFIX = "rlax.objective"
_BARS = 24  # of a drawn schedule


def section_for(
    name: str = "", arguments: Sequence[str] = (), plugins: Sequence[str] = ()
) -> RlaxSection:
    """Returns a section that sets only the objective.

    Args:
      name: name of the preset, or a config whose own objective is explained.
      arguments: perhaps a config, whose plug-ins are loaded, then ``key=value``, every key below
        ``rlax.objective``.
      plugins: plug-ins to load besides the built-in ones; installed plug-ins that the objective
        needs are found without being named.

    Raises:
      ConfigError: an override is wrong, or its key is not below ``rlax.objective``; or the config
        is wrong.
    """
    overrides = [argument for argument in arguments if "=" in argument]
    objective: dict[str, Any] = {"preset": name}
    loaded = tuple(plugins)
    for config in (word for word in (name, *arguments) if _is_config(word)):
        listed, _ = load_section(config)
        loaded = tuple(dict.fromkeys((*loaded, *listed.plugins)))
        if config == name:
            objective = listed.objective.model_dump(mode="json", exclude_unset=True)
    if unknown := [word for word in arguments if "=" not in word and not _is_config(word)]:
        raise ConfigError("command line", unknown[0], "must be a config (.yml) or KEY=VALUE")
    for override in overrides:
        if not override.startswith(f"{PREFIX}."):
            raise ConfigError("command line", override, f"must be a key below {PREFIX}.")
    content = overridden({"rlax": {"objective": objective}}, overrides)
    section = section_of(content["rlax"]["objective"], loaded)
    # No config lists plug-ins here: whatever is installed may be meant, one plug-in at a time.
    while name and (missing := _not_loaded(section)):
        if len(missing.plugins) > 1:
            offering = " and ".join(map(repr, missing.plugins))
            reason = f"is offered by plug-ins {offering}; choose one with --plugin"
            raise ConfigError(missing.key, missing.value, reason)
        loaded += missing.plugins
        section = section.model_copy(update={"plugins": loaded})
    return section


def _is_config(word: str) -> bool:
    return "=" not in word and word.endswith((".yml", ".yaml"))


def _not_loaded(section: RlaxSection) -> NotLoadedError | None:
    """Returns the error for a part whose plug-in is installed but not loaded; None if none is."""
    registry = registry_for(section)
    try:
        for use in registry.objective_uses(section):
            registry.offer(use.kind, use.choice.name, use.key)
    except NotLoadedError as error:
        return error
    return None


def presets_of(registry: Registry) -> dict[str, Preset]:
    """Returns every preset that the loaded plug-ins offer, in their order."""
    return {
        name: _built(registry, "objective", name, f"{PREFIX}.preset")
        for name in registry.offers["objective"]
    }


def part_text(registry: Registry, kind: str, name: str) -> str:
    """Returns a part's description: the docstring of its options or, if it has none, its own."""
    extension = registry.offer(kind, name, f"{PREFIX}.{kind}").extension
    documented = extension.config_class
    if documented is NoOptions:
        documented = _built(registry, kind, name, f"{PREFIX}.{kind}")
    return inspect.cleandoc(documented.__doc__ or "").replace("``", "`")


def _built(registry: Registry, kind: str, name: str, key: str) -> Any:
    """Builds a part without options."""
    section = section_of({}, registry.manager.names)
    context = BuildContext.outside_run(section)
    return registry.part(kind, Choice(name=name), key, context)


def _short(choice: Choice | None) -> str:
    """Formats a choice on one line, as a call."""
    if choice is None:
        return ""
    options = ", ".join(f"{name}={yaml_text(value)}" for name, value in choice.options.items())
    return f"{choice.name}({options})" if options else choice.name


# The command line.


def list_presets(console: Console, registry: Registry) -> None:
    """Prints the formula and parts of every preset."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("preset", no_wrap=True)
    table.add_column("formula, which is maximised, and its parts")
    for name, preset in presets_of(registry).items():
        parts = [choice.name for _, _, choice in choices(preset)]
        formula = Text(f"{preset.formula.strip()}\n")
        table.add_row(Text(name, "bold"), formula.append(", ".join(parts), "dim"))
    console.print(table)
    console.print("\nrlax objective NAME explains a preset, with an example.", style="dim")


def show_preset(console: Console, section: RlaxSection) -> None:
    """Prints a preset, the section's changes to it, and the worked example."""
    registry = registry_for(section)
    name = section.objective.preset
    preset = _built(registry, "objective", name, f"{PREFIX}.preset")
    algorithm = algorithm_of(section.objective, preset)
    console.print(Text.assemble((name, "bold"), f"  {preset.title}"))
    if preset.paper:
        console.print(Text(preset.paper, "cyan"))
    if preset.formula:
        console.print(Padding(Text(preset.formula.rstrip()), (1, 2)))
    console.print(_parts_table(registry, algorithm))
    for title, rows in (
        ("Conventions", [("-", line) for line in preset.conventions]),
        ("In other libraries", list(preset.peers.items())),
        (f"Defaults of version {preset.version}, {preset.source}", list(preset.covers.items())),
        ("What the preset cannot say", [("-", line) for line in preset.lacks]),
    ):
        if rows:
            console.print(_pairs(title, rows))
    console.print(worked_example(section))


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Group:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    for left, right in rows:
        table.add_row(left, Text(right))
    return Group(Text(title, "bold"), table, Text())


def _parts_table(registry: Registry, algorithm: Algorithm) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("rlax.objective.", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("meaning", overflow="fold")
    for key, kind, choice in choices(algorithm):
        text = " ".join(part_text(registry, kind, choice.name).split())
        table.add_row(Text(key, "bold"), Text(choice.name, "bold"), Text(text))
        options = registry.options(kind, choice, f"{PREFIX}.{key}")
        _add_fields(table, options, "  ")
        table.add_row()
    _add_fields(table, algorithm, "")
    table.add_row()
    return table


def _add_fields(table: Table, model: BaseModel, prefix: str) -> None:
    """Adds a row for each number, also those in sections; choices have rows already."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, Choice | tuple) or (name in SLOTS):
            continue
        if isinstance(value, Schedule):
            table.add_row(
                Text(f"{prefix}{name}"), _drawn(value), Text(field.description or "", "dim")
            )
            continue
        if isinstance(value, BaseModel):
            _add_fields(table, value, f"{prefix}{name}.")
            continue
        default = "" if field.is_required() else f"default {yaml_text(field.get_default())}"
        meaning = "; ".join(filter(None, (field.description, default)))
        table.add_row(Text(f"{prefix}{name}"), Text(yaml_text(value)), Text(meaning, "dim"))


def _drawn(schedule: Schedule) -> Text:
    """Returns a schedule in words, and its values from step 1 to its last one as bars."""
    (first, _), (last, _) = schedule.corners[0], schedule.corners[-1]
    steps = np.linspace(min(first, 1), last, _BARS).round().astype(int).tolist()
    return Text(f"{schedule}\n{sparkline([schedule.at(step) for step in steps])}")


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
        "entropy_bt": np.ones(ratio_bt.shape),
    }
    unused = unused_arrays(slots_of(section), optional, ratio_bt.shape, len(RATIOS))
    found = evaluate_objective(
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
        numbers = (found.ratio_bt, found.advantages_bt, found.weights_bt, found.grad_bt)
        table.add_row(
            str(row + 1) if t == 0 else "",
            f"{REWARDS[row]:g}" if t == 0 else "",
            f"{ratio_bt[row, t]:g}",
            *(f"{x_bt[row, t] + 0.0:.4f}" for x_bt in numbers),  # + 0.0: no minus at 0
        )
    metrics = ", ".join(
        f"{name.removeprefix('objective/')} {value:.4g}"
        for name, value in found.metrics.items()
        if name.startswith("objective/")
    )
    return Group(
        Text("Worked example", "bold"),
        table,
        Text(f"\nloss {found.loss:.6g}, which is minimised", "bold"),
        Text(
            "The samples belong to one prompt; each row is a token. mu = 0.1, pi_ref = mu, entropy "
            "1 nat, L_max 4. If the trainer computes pi_old, it is sqrt(pi mu), as in a later "
            "update with the same batch. weight = agg * is * corrections, normalised.",
            "dim",
        ),
        Text(f"metrics: {metrics}", "dim"),
    )


# The document.


def markdown(registry: Registry) -> str:
    """Returns the generated part of ``docs/objectives.md``."""
    found = presets_of(registry)
    blocks = [
        "## Presets",
        "The symbols are those of the [notation](#notation). In the table, agg and is stand for "
        "the slots `aggregation` and `importance_weight`, and the last column is the value of "
        "`old_policy`. Each preset has its formula, its config, and notes on its details and on "
        "other libraries.",
        *_preset_table(found),
        *(block for name, preset in found.items() for block in _preset_blocks(name, preset)),
        "## Parts",
        "A config chooses a part by its name and can set its options. The text below each name is "
        "the docstring of the part; it begins with what the part computes.",
        *(block for kind in KINDS for block in _kind_blocks(registry, kind)),
    ]
    return "\n\n".join(blocks) + "\n"


def _preset_table(found: Mapping[str, Preset]) -> Iterator[str]:
    rows = [["preset", "agg", "is", "advantage", "grad_1", "grad_2", "pi_old"]]
    for name, preset in found.items():
        slots = [f"`{_short(getattr(preset, slot))}`" for slot in SLOTS]
        rows.append([f"[{name}](#{name.replace('/', '')})", *slots, preset.old_policy])
    yield markdown_table(rows)


def _preset_blocks(name: str, preset: Preset) -> Iterator[str]:
    yield f"### {name}"
    yield f"{preset.title}, <{preset.paper}>"
    yield f"```text\n{preset.formula.rstrip()}\n```"
    yield f"```yaml\n{_yaml(preset)}```"
    if preset.conventions:
        yield "\n".join(f"- {line}" for line in preset.conventions)
    if preset.peers:
        yield "In other libraries:"
        yield "\n".join(f"- **{library}**: {text}" for library, text in preset.peers.items())
    if preset.covers:
        yield f"Defaults of version {preset.version}, <{preset.source}>:"
        yield "\n".join(f"- **{subject}**: {text}" for subject, text in preset.covers.items())
    if preset.lacks:
        yield "What the preset cannot say:"
        yield "\n".join(f"- {line}" for line in preset.lacks)


def _yaml(preset: Preset) -> str:
    """Formats a preset as YAML under ``rlax.objective``."""
    slots = {slot: getattr(preset, slot).model_dump(mode="json") for slot in SLOTS}
    others = preset.model_dump(
        mode="json", include=set(Algorithm.model_fields) - set(SLOTS), exclude_defaults=True
    )
    return yaml.safe_dump(slots | others, sort_keys=False, default_flow_style=None, width=90)


def _kind_blocks(registry: Registry, kind: str) -> Iterator[str]:
    yield f"### {kind.replace('_', ' ').capitalize()}s"
    for name, offer in registry.offers[kind].items():
        yield f"#### {name}"
        yield f"```text\n{part_text(registry, kind, name)}\n```"
        rows = [["option", "default", "meaning"]]
        for option, field in offer.extension.config_class.model_fields.items():
            default = "" if field.is_required() else f"`{yaml_text(field.get_default())}`"
            rows.append([f"`{option}`", default, field.description or ""])
        if len(rows) > 1:
            yield markdown_table(rows)
