"""The section on curation: useful groups, pass rates, and the prompts that were used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlax_plugin.commands.report import curation_charts as draw
from rlax_plugin.commands.report.asked_prompts import (
    AskedShare,
    asked_by_domain,
    columns_of,
    extremes,
    shown,
)
from rlax_plugin.commands.report.calibration import calibration
from rlax_plugin.commands.report.domain_rates import domain_rates
from rlax_plugin.commands.report.figures import Figure
from rlax_plugin.commands.report.history import History
from rlax_plugin.commands.report.newest_rates import ONE_DOMAIN, NewestRates, newest_rates
from rlax_plugin.commands.report.recorded_groups import GroupAt
from rlax_plugin.commands.report.run import RunData
from rlax_plugin.commands.report.section import PromptList, Section, Table
from rlax_plugin.commands.report.series import Chart
from rlax_plugin.commands.report.useful_groups import UsefulGroups, useful_groups
from rlax_plugin.config.rollouts import Curation
from rlax_plugin.prompts.record import training_prompts
from rlax_plugin.records.files import RunFiles

TITLE = "Rollouts and data"


def curation_section(files: RunFiles, run: RunData, recorded: Sequence[GroupAt]) -> Section:
    """Reads the newest pass rates and returns the section, which names missing data.

    Args:
      recorded: every group whose samples are kept.

    Raises:
      RlaxError: the file system fails.
    """
    rates: NewestRates | None = None
    with run.noting():
        rates = newest_rates(files)
    figures, charts, tables, notes = list[Figure](), list[Chart](), list[Table](), list[str]()
    if run.history is not None and run.history.steps:
        useful = useful_groups(run.history, {group.group: group for group in recorded})
        figures += _useful_figures(run, useful, run.history)
        charts.append(draw.fates(run.history))
        if useful.useful:
            charts.append(draw.samples_per_useful_group(useful, _group_size(run)))
        charts += _calibration(run.history, recorded, notes)
        domain_p, domains = _domains(run.history, rates)
        charts += _domain_rates(run, run.history, domain_p, domains)
        with run.noting():
            _never_asked(files, domain_p, domains, figures, tables, notes)
    prompts: list[PromptList] = []
    with run.noting():
        prompts = _extremes(files, run, rates, recorded, notes)
    return Section(TITLE, charts, " ".join(notes), figures, tables, prompts)


def _setting(run: RunData, key: str) -> Any:
    return run.setting("curation", key, Curation.model_fields[key].default)


def _group_size(run: RunData) -> int:
    return int(run.setting("rollouts", "group_size", 0))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _useful_figures(run: RunData, useful: UsefulGroups, history: History) -> list[Figure]:
    found = []
    if useful.useful:
        remark = f"{useful.samples:,} samples, {useful.useful:,} useful groups"
        if size := _group_size(run):
            remark += f"; {size} if no group is wasted"
        value = f"{useful.samples / useful.useful:.1f}"
        found.append(Figure("samples per useful group", value, remark))
    if useful.trained:
        remark = f"{useful.useful:,} of {useful.trained:,} groups that trained"
        if useful.counted:
            remark += f"; {useful.counted:,} of them by passed samples alone"
        share = _percent(useful.useful / useful.trained)
        found.append(Figure("trained with mixed rewards", share, remark))
    if history.groups.samples_saved:
        value = f"{history.groups.samples_saved:,} samples"
        remark = f"about {history.groups.tokens_saved:,} tokens"
        found.append(Figure("saved by cancelling", value, remark))
    return found


def _calibration(history: History, recorded: Sequence[GroupAt], notes: list[str]) -> list[Chart]:
    columns = {name: history.groups.column(name) for name in ("passed", "scored", "prompt")}
    before_of = {group.group: group.pass_rate_before for group in recorded}
    groups = history.groups.column("group").tolist()
    kept_g = np.array([group in before_of for group in groups], bool)
    before_g = np.array([before_of.get(group) for group in groups], np.float64)
    usable = np.isfinite(before_g) & (columns["scored"] > 0)
    if not usable.any():
        notes.append(
            "No prompt had a pass rate before one of its groups was scored, so there are no "
            "predictions to compare with what was observed."
        )
        return []
    passed_g, scored_g, prompt_g = (column[usable] for column in columns.values())
    bins = calibration(before_g[usable], passed_g, scored_g, prompt_g)
    without = int(np.count_nonzero(kept_g & ~np.isfinite(before_g)))
    return [draw.calibration_chart(bins, without, int(np.count_nonzero(~kept_g)))]


def _domains(history: History, rates: NewestRates | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the domain of each used prompt, as far as the newest snapshot has it.

    Returns:
      Indices int [prompts] into the domains' names, one past the end if not known; and the names.
    """
    asked = list(history.groups.asked)
    if rates is None or rates.domains == ONE_DOMAIN:
        return np.zeros(len(asked), np.int64), ONE_DOMAIN
    rows = rates.rows_of(asked)
    return np.where(rows < 0, len(rates.domains), rates.domain_n[rows]), rates.domains


def _domain_rates(
    run: RunData, history: History, domain_p: np.ndarray, domains: tuple[str, ...]
) -> list[Chart]:
    half_life = float(_setting(run, "pass_rate_half_life"))
    steps, means = domain_rates(history.groups, domain_p, len(domains) + 1, half_life)
    asked = np.bincount(domain_p, minlength=len(domains) + 1)[: len(domains)]
    return draw.domain_chart(steps, means[: len(domains)], domains, asked, half_life)


def _never_asked(
    files: RunFiles,
    domain_p: np.ndarray,
    domains: tuple[str, ...],
    figures: list[Figure],
    tables: list[Table],
    notes: list[str],
) -> None:
    record = training_prompts(files)
    if record is None:
        notes.append("How many prompts the run has is not recorded, nor which were never asked.")
        return
    whole = AskedShare("all", record.prompts, len(domain_p))
    share = whole.never / max(whole.prompts, 1)
    remark = f"{_percent(share)} of {whole.prompts:,}"
    figures.append(Figure("prompts never asked", f"{whole.never:,}", remark))
    if not record.domains or domains == ONE_DOMAIN:
        if record.domains or domains != ONE_DOMAIN:
            notes.append("It is not recorded how many prompts of each domain were never asked.")
        return
    found = [whole, *asked_by_domain(record.domains, domain_p, domains)]
    rows = [
        (one.domain or "(none)", f"{one.prompts:,}", f"{one.asked:,}", f"{one.never:,}",
         _percent(one.never / max(one.prompts, 1)))
        for one in found
    ]  # fmt: skip
    columns = ("domain", "prompts", "asked", "never asked", "share")
    tables.append(Table("Prompts that were never asked", columns, rows))
    if unknown := int(np.count_nonzero(domain_p == len(domains))):
        notes.append(
            "Prompts that were asked and have no pass rate in the newest snapshot, which also "
            f"records the domains: {unknown:,}. Their domains count them as never asked."
        )


def _extremes(
    files: RunFiles,
    run: RunData,
    rates: NewestRates | None,
    recorded: Sequence[GroupAt],
    notes: list[str],
) -> list[PromptList]:
    if rates is None:
        notes.append("The run has no snapshot yet, so hard and easy prompts are not listed.")
        return []
    samples, rate = float(_setting(run, "prior_samples")), float(_setting(run, "prior_rate"))
    prior = (samples * rate, samples * (1 - rate))
    found = []
    for kind, rows in zip(("Hardest", "Easiest"), extremes(rates, recorded, prior), strict=True):
        if rows:
            title = (
                f"{kind} prompts with recorded samples, by the pass rates of step {rates.step:,}"
            )
            examples = shown(files, rates, rows, recorded, prior)
            columns = columns_of(rates)
            found.append(PromptList(title, columns, examples, samples="reward, and completion"))
    return found
