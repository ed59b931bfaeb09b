"""The prompts that a run has used: their share by domain, the hardest and the easiest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlax_plugin.commands.report.newest_rates import ONE_DOMAIN, NewestRates
from rlax_plugin.commands.report.recorded_groups import GroupAt, read_rows
from rlax_plugin.commands.report.section import ShownPrompt, ShownSample, shortened
from rlax_plugin.pass_rates.intervals import beta_interval
from rlax_plugin.records.files import RunFiles

_EXAMPLES = 6  # of each kind


@dataclass(frozen=True, slots=True)
class AskedShare:
    """The number of prompts of a domain, or of all, and of those that were used."""

    domain: str
    prompts: int
    asked: int

    @property
    def never(self) -> int:
        return self.prompts - self.asked


def asked_by_domain(
    prompts_of: Mapping[str, int], domain_p: np.ndarray, domains: Sequence[str]
) -> list[AskedShare]:
    """Returns the number of used prompts of each domain, the largest domain first.

    Args:
      prompts_of: domain -> number of its training prompts.
      domain_p: int [used prompts], an index into ``domains``; past its end if not known.
    """
    counts = np.bincount(domain_p, minlength=len(domains))[: len(domains)]
    asked = dict(zip(domains, counts.tolist(), strict=True))
    there = {name: count for name, count in prompts_of.items() if count}
    found = [AskedShare(name, count, asked.get(name, 0)) for name, count in there.items()]
    return sorted(found, key=lambda one: -one.prompts)


def extremes(
    rates: NewestRates, recorded: Sequence[GroupAt], prior: tuple[float, float]
) -> tuple[list[int], list[int]]:
    """Returns rows of the hardest and of the easiest prompts with recorded samples.

    Args:
      prior: alpha and beta of the Beta prior.
    """
    ids = list(dict.fromkeys(group.prompt_id for group in recorded))
    rows = rates.rows_of(ids)
    rows = rows[rows >= 0]
    rows = rows[rates.groups_n[rows] > 0]
    alpha, beta = prior[0] + rates.passed_n[rows], prior[1] + rates.failed_n[rows]
    ordered = rows[np.lexsort((rows, alpha / (alpha + beta)))].tolist()
    hardest = ordered[:_EXAMPLES]
    return hardest, ordered[len(hardest) :][-_EXAMPLES:][::-1]


def columns_of(rates: NewestRates) -> tuple[str, ...]:
    """Returns the names of the facts that ``shown`` gives for each prompt."""
    domain = ("domain",) if rates.domains != ONE_DOMAIN else ()
    return ("passed", "rate", "90 % interval", "groups", *domain)


def shown(
    files: RunFiles,
    rates: NewestRates,
    rows: Sequence[int],
    recorded: Sequence[GroupAt],
    prior: tuple[float, float],
) -> list[ShownPrompt]:
    """Returns prompts with their posterior, and the best and worst sample of their newest group.

    Args:
      rows: rows of ``rates``; each must have a recorded group.

    Raises:
      RlaxError: a file of samples is damaged.
    """
    ids = [rates.ids[row].as_py() for row in rows]
    wanted, newest = set(ids), dict[str, GroupAt]()
    for group in recorded:
        of_prompt = group.prompt_id in wanted
        if of_prompt and (group.step, group.group) >= _place(newest.get(group.prompt_id)):
            newest[group.prompt_id] = group
    texts = _texts(files, list(newest.values()))
    found = []
    for prompt_id, row in zip(ids, rows, strict=True):
        good, bad = float(rates.passed_n[row]), float(rates.failed_n[row])
        alpha, beta = prior[0] + good, prior[1] + bad
        low, high = (float(end) for end in beta_interval(alpha, beta))
        facts = (
            f"{good:.3g} of {good + bad:.3g}",
            f"{alpha / (alpha + beta):.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{rates.groups_n[row]:,}",
            *((rates.domains[rates.domain_n[row]],) if rates.domains != ONE_DOMAIN else ()),
        )
        text, samples = texts[newest[prompt_id].group]
        found.append(ShownPrompt(facts, shortened(text), samples))
    return found


def _place(group: GroupAt | None) -> tuple[int, int]:
    return (-1, -1) if group is None else (group.step, group.group)


def _texts(files: RunFiles, groups: Sequence[GroupAt]) -> dict[int, tuple[str, list[ShownSample]]]:
    """Returns group -> its prompt's text and one or two samples; reads each file once."""
    columns = ("group", "sample", "trajectory", "prompt", "completion", "reward", "reward_error")
    found: dict[int, tuple[str, list[ShownSample]]] = {}
    for name in dict.fromkeys(group.file for group in groups):
        wanted = {group.group for group in groups if group.file == name}
        of_group: dict[int, list[dict[str, Any]]] = {}
        table = read_rows(files, name, columns)
        places = [i for i, group in enumerate(table["group"].to_pylist()) if group in wanted]
        for row in table.take(places).to_pylist():
            if not row["trajectory"]:
                of_group.setdefault(row["group"], []).append(row)
        for group, rows in of_group.items():
            found[group] = (rows[0]["prompt"], _best_and_worst(rows))
    return found


def _best_and_worst(rows: Sequence[dict[str, Any]]) -> list[ShownSample]:
    """Returns the best and the worst sample, or only one if all rewards are equal."""
    scored = sorted((r for r in rows if r["reward"] is not None), key=lambda r: -r["reward"])
    if not scored:
        return [ShownSample("failed", shortened(rows[0]["completion"]))]
    differ = scored[0]["reward"] != scored[-1]["reward"]
    chosen = [scored[0], scored[-1]] if differ else scored[:1]
    return [ShownSample(f"{r['reward']:.3g}", shortened(r["completion"])) for r in chosen]
