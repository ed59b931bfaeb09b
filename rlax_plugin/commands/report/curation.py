"""The section on curation: useful groups, pass rates, and the prompts that were used.

From top to bottom: the section with its figures, tables and notes; the pass rates of the newest
snapshot; what is counted of groups, domains and prompts; and the charts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlax_plugin.commands.report.figures import Figure
from rlax_plugin.commands.report.history import ACCEPTED, History, ScoredGroups
from rlax_plugin.commands.report.recorded_samples import GroupAt, read_rows
from rlax_plugin.commands.report.run import RunData
from rlax_plugin.commands.report.section import (
    PromptList,
    Section,
    ShownPrompt,
    ShownSample,
    Table,
    shortened,
)
from rlax_plugin.commands.report.series import COLOURS, NEUTRAL, Chart, layout, thinned
from rlax_plugin.commands.report.x_axes import STEP
from rlax_plugin.config.rollouts import Curation
from rlax_plugin.errors import RlaxError
from rlax_plugin.pass_rates.files import unpacked
from rlax_plugin.pass_rates.intervals import beta_interval
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable
from rlax_plugin.prompts.record import training_prompts
from rlax_plugin.records.files import RunFiles
from rlax_plugin.resume.snapshots import rates_name, snapshot_steps
from rlax_plugin.text.harmless import one_line

if TYPE_CHECKING:
    import pyarrow as pa

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
        charts.append(fates(run.history))
        if useful.useful:
            charts.append(samples_per_useful_group(useful, _group_size(run)))
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
    return [calibration_chart(bins, without, int(np.count_nonzero(~kept_g)))]


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
    return domain_chart(steps, means[: len(domains)], domains, asked, half_life)


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
    prompts, asked = record.prompts, len(domain_p)
    remark = f"{_percent((prompts - asked) / max(prompts, 1))} of {prompts:,}"
    figures.append(Figure("prompts never asked", f"{prompts - asked:,}", remark))
    if not record.domains or domains == ONE_DOMAIN:
        if record.domains or domains != ONE_DOMAIN:
            notes.append("It is not recorded how many prompts of each domain were never asked.")
        return
    counts = np.bincount(domain_p, minlength=len(domains))[: len(domains)].tolist()
    asked_of = dict(zip(domains, counts, strict=True))
    largest_first = sorted(record.domains.items(), key=lambda domain: -domain[1])
    shares = [("all", prompts, asked)]
    shares += [(name or "(none)", n, asked_of.get(name, 0)) for name, n in largest_first if n]
    rows = [
        (name, f"{n:,}", f"{k:,}", f"{n - k:,}", _percent((n - k) / max(n, 1)))
        for name, n, k in shares
    ]
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


ONE_DOMAIN = ("",)
"""The names of the domains if prompts have no domain."""


@dataclass(frozen=True, slots=True, eq=False)
class NewestRates:
    """The pass-rate table of a run as of its newest snapshot.

    Attributes:
      step: step of the snapshot.
      ids: strings [n].
      passed_n, failed_n: float64 [n], numbers of samples; older ones count less.
      groups_n: int64 [n], number of groups of this run; 0: the rate is only that of a prior.
      domain_n: int64 [n], an index into ``domains``.
      domains: names of the measured prompts' domains.
    """

    step: int
    ids: pa.Array
    passed_n: np.ndarray
    failed_n: np.ndarray
    groups_n: np.ndarray
    domain_n: np.ndarray
    domains: tuple[str, ...]

    def rows_of(self, prompts: Sequence[str]) -> np.ndarray:
        """Returns the rows of prompt ids, int64; -1 for a prompt without a pass rate."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(prompts, pa.string())
        found = pc.call_function("index_in", [wanted], pc.SetLookupOptions(self.ids))
        return found.fill_null(-1).to_numpy(False).astype(np.int64)


def newest_rates(files: RunFiles) -> NewestRates | None:
    """Reads the pass rates; returns None if the run has no snapshot yet.

    Raises:
      RlaxError: they are damaged, or the snapshot was removed meanwhile.
    """
    import pyarrow as pa

    if not (steps := snapshot_steps(files)):
        return None
    step, name = steps[-1], rates_name(steps[-1])
    try:
        rates = unpacked(files.get(name), name)
    except FileNotFoundError:
        raise RlaxError(f"{name} does not exist") from None
    passed, failed = rates.counts()
    of_n = rates.table.column("domain").combine_chunks().dictionary_encode()
    names: list[str] = of_n.dictionary.to_pylist()
    return NewestRates(
        step=step,
        ids=rates.table.column("id").combine_chunks().cast(pa.string()),
        passed_n=passed,
        failed_n=failed,
        groups_n=rates.column("groups").astype(np.int64),
        domain_n=of_n.indices.fill_null(len(names)).to_numpy(False).astype(np.int64),
        domains=(*names, "") if of_n.null_count or not names else tuple(names),
    )


@dataclass(frozen=True, slots=True, eq=False)
class UsefulGroups:
    """Counts of useful groups: trained groups whose rewards differ.

    Attributes:
      steps: steps of the journal.
      samples_s: int [steps], samples generated of all groups.
      useful_s: int [steps], useful groups by the step in which they trained.
      trained: number of groups that have trained.
      counted: number of trained groups without recorded samples; they are useful if some samples
        passed and some did not.
    """

    steps: list[int]
    samples_s: np.ndarray
    useful_s: np.ndarray
    trained: int
    counted: int

    @property
    def samples(self) -> int:
        return int(self.samples_s.sum())

    @property
    def useful(self) -> int:
        return int(self.useful_s.sum())


def useful_groups(history: History, recorded: Mapping[int, GroupAt]) -> UsefulGroups:
    """Counts useful groups.

    Args:
      recorded: group -> its recorded samples, as far as they are kept.
    """
    steps = list(history.steps)
    useful = dict.fromkeys(steps, 0)
    names = ("group", "trained_at", "passed", "scored")
    rows = zip(*(history.groups.column(name).tolist() for name in names), strict=True)
    trained = counted = 0
    for group, at, passed, scored in rows:
        if not at:
            continue
        trained += 1
        if (known := recorded.get(group)) is None:
            counted += 1
            mixed = 0 < passed < scored
        else:
            mixed = known.mixed
        if mixed:
            useful[at] = useful.get(at, 0) + 1
    return UsefulGroups(
        steps=steps,
        samples_s=np.array([at.samples for at in history.steps.values()], np.int64),
        useful_s=np.array([useful[step] for step in steps], np.int64),
        trained=trained,
        counted=counted,
    )


def domain_rates(
    groups: ScoredGroups, domain_p: np.ndarray, domains: int, half_life: float
) -> tuple[list[int], np.ndarray]:
    """Observes the groups again, in their order, as the run's table did, but without a prior.

    Args:
      domain_p: int [used prompts], domain of each prompt, by its number in ``groups``.
      domains: number of domains.
      half_life: half-life of a sample, in policy versions.

    Returns:
      The steps in which a group was scored, ascending; and float64 [domains, steps], the mean rate
      of the prompts used so far, each of which counts once; NaN before the domain's first one.
    """
    table = PassRateTable(len(domain_p), half_life)
    rate_p = np.full(len(domain_p), np.nan)  # of each prompt, when it was observed last
    sums, counts = np.zeros(domains), np.zeros(domains)  # of these rates, by domain
    names = ("prompt", "step", "passed", "scored", "version")
    rows = zip(*(groups.column(name).tolist() for name in names), strict=True)
    found: dict[int, list[float]] = {}
    now: int | None = None

    def note() -> None:
        if now is not None:
            unknown = np.full(domains, np.nan)
            found[now] = np.divide(sums, counts, out=unknown, where=counts > 0).tolist()

    for prompt, step, passed, scored, version in rows:
        if step != now:
            note()
            now = step
        if prompt >= 0:
            table.observe(prompt, passed, scored - passed, version)
            if (rate := table.rate(prompt)) is not None:
                before, domain = rate_p[prompt], domain_p[prompt]
                counts[domain] += np.isnan(before)
                sums[domain] += rate - np.nan_to_num(before)
                rate_p[prompt] = rate
    note()
    return list(found), np.array(list(found.values()), np.float64).reshape(-1, domains).T


_EXAMPLES = 6  # of each kind


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


BINS = 10
"""Number of equal ranges of predicted pass rate; exactly 0 and exactly 1 are separate bins."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Groups whose prompts had similar pass rates before.

    Attributes:
      predicted: mean pass rate before, each group weighted by its scored samples.
      observed: share of their samples that then passed.
      low, high: 90 % interval of the observed share.
    """

    groups: int
    samples: int
    predicted: float
    observed: float
    low: float
    high: float


def calibration(
    before_g: np.ndarray, passed_g: np.ndarray, scored_g: np.ndarray, prompt_g: np.ndarray
) -> list[Bin]:
    """Returns the bins that have groups, by predicted pass rate.

    Samples count, not groups. Screening may end a group after some samples because of their
    rewards, which biases the mean of the groups' shares. The share of all samples is not biased,
    since the number of samples depends only on earlier ones (Wald's identity).

    Args:
      before_g: float [groups], the pass rate of a group's prompt before the group; no NaN.
      passed_g, scored_g: int, samples of the group; at least one was scored.
      prompt_g: int, number of the prompt.
    """
    inner = np.clip((before_g * BINS).astype(np.int64), 0, BINS - 1) + 1
    place_g = np.where(before_g <= 0, 0, np.where(before_g >= 1, BINS + 1, inner))
    found = []
    for place in range(BINS + 2):
        at = np.flatnonzero(place_g == place)
        if at.size:
            samples, passed = int(scored_g[at].sum()), int(passed_g[at].sum())
            low, high = share_interval(passed_g[at], scored_g[at], prompt_g[at])
            predicted = float(before_g[at] @ scored_g[at]) / samples
            found.append(Bin(at.size, samples, predicted, passed / samples, low, high))
    return found


def share_interval(
    passed_g: np.ndarray, scored_g: np.ndarray, prompt_g: np.ndarray, mass: float = 0.9
) -> tuple[float, float]:
    """Returns an interval of the share of samples that pass, over the choice of prompts.

    Samples of one prompt are correlated, so they carry less information than as many independent
    ones. The variance of the share over prompts (of a ratio, linearised) gives the effective number
    of independent samples. The interval is Jeffreys', Beta(k + 1/2, n - k + 1/2), for that number.
    See Korn and Graubard 1998, Survey Methodology 24, on intervals of proportions in clusters; and
    Brown, Cai and DasGupta 2001, Statistical Science 16, on Jeffreys' interval and its ends.

    Args:
      passed_g, scored_g: int [groups], numbers of samples.
      prompt_g: int, number of the prompt.
      mass: probability of the interval.
    """
    _, cluster = np.unique(prompt_g, return_inverse=True)
    passed_p, scored_p = (np.bincount(cluster, weights=one) for one in (passed_g, scored_g))
    samples, prompts = float(scored_p.sum()), len(scored_p)
    share = float(passed_p.sum()) / samples
    independent = samples
    if prompts > 1 and 0 < share < 1:
        rest = passed_p - share * scored_p
        variance = prompts / (prompts - 1) * float(rest @ rest) / samples**2
        independent = min(samples, share * (1 - share) / variance) if variance > 0 else samples
    passed, failed = share * independent, (1 - share) * independent
    low, high = beta_interval(passed + 0.5, failed + 0.5, mass)
    return (float(low) if passed else 0.0), (float(high) if failed else 1.0)


_COLUMNS = 100  # of a heat map, and bars of a stack: steps are put together beyond
_ROWS = 10
_MOST_REASONS = 7  # with a colour of their own
_OTHERS = "other reasons"
_LONGEST = 60  # characters of a name in a legend


def _spans(steps: Sequence[int]) -> list[slice]:
    """Returns slices that cut a list of steps into at most ``_COLUMNS`` parts of equal length."""
    size = max(1, -(-len(steps) // _COLUMNS))
    return [slice(start, start + size) for start in range(0, len(steps), size)]


def _span_name(span: Sequence[int]) -> str:
    return f"step {span[0]}" if len(span) == 1 else f"steps {span[0]} to {span[-1]}"


def pass_rates(run: RunData) -> Chart | None:
    """Returns a chart of the distribution of the scored groups' pass rates over time."""
    if run.history is None:
        return None
    steps = list(run.history.steps)
    spans = [steps[span] for span in _spans(steps)]
    size = int(run.setting("rollouts", "group_size", 0))
    rows = size if 0 < size <= _ROWS else _ROWS
    counts = np.zeros((rows + 1, len(spans)))
    for at, span in enumerate(spans):
        for step in span:
            for (passed, scored), groups in run.history.steps[step].pass_rates.items():
                # None and all have rows of their own: such groups have no contrast.
                row = np.clip(round(passed / scored * rows), 1, rows - 1)
                counts[{0: 0, scored: rows}.get(passed, row), at] += groups
    if not counts.any():
        return None
    total = counts.sum(axis=0)
    share = np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0) * 100
    names = [_span_name(span) for span in spans]
    figure = go.Figure(
        go.Heatmap(
            x=[float(np.mean(span)) for span in spans],
            y=[100 * row / rows for row in range(rows + 1)],
            z=share,
            customdata=np.dstack([counts, np.broadcast_to(names, counts.shape)]),
            colorscale="Viridis",
            colorbar={"title": {"text": "% of groups", "side": "right"}, "thickness": 12},
            hovertemplate="%{customdata[1]}, pass rate %{y:.0f} %: %{z:.1f} % of groups "
            "(%{customdata[0]})<extra></extra>",
        ),
        layout=layout(STEP, "samples of a group that pass, %", hovermode="closest"),
    )
    return Chart(
        f"pass-rates-{run.name}",
        "Pass rates of groups",
        "In the lowest and the highest row, the samples of a group all fail or all pass, so its "
        "rewards do not differ. Learning moves groups upwards.",
        figure,
        of=run.name,
    )


def fates(history: History) -> Chart:
    """Returns a chart of the outcomes of groups by step: trained, rejected or dropped."""
    steps = list(history.steps)
    spans = [steps[span] for span in _spans(steps)]
    whole = sum((at.outcomes for at in history.steps.values()), Counter[str]())
    reasons = [name for name, _ in whole.most_common() if name != ACCEPTED]
    others = set(reasons[_MOST_REASONS - 1 :]) if len(reasons) > _MOST_REASONS else set[str]()
    names = [ACCEPTED, *sorted(set(reasons) - others), *([_OTHERS] if others else [])]
    figure = go.Figure(layout=layout(STEP, "groups per step", barmode="stack", bargap=0))
    for index, name in enumerate(names):
        of_name = others if name == _OTHERS else {name}
        counts = [
            sum(history.steps[step].outcomes[one] for step in span for one in of_name)
            for span in spans
        ]
        figure.add_bar(
            x=[float(np.mean(span)) for span in spans],
            y=[count / len(span) for count, span in zip(counts, spans, strict=True)],
            name=_label(name),
            marker={"color": COLOURS[(2, 1, 3, 4, 5, 6, 7, 0)[index]], "line": {"width": 0}},
        )
    figure.update_layout(legend={"traceorder": "normal"})
    caption = "Each group counts once, in the step in which it was scored."
    if any(name.startswith("dropped") for name in whole):
        caption += " Dropped groups were accepted first, unless they were no longer needed."
    return Chart("outcomes", "What became of the groups", caption, figure)


def _label(name: str) -> str:
    plain = name in (ACCEPTED, _OTHERS) or name.startswith("dropped")
    return one_line(name if plain else f"rejected: {name}", _LONGEST)


def samples_per_useful_group(useful: UsefulGroups, group_size: int) -> Chart:
    """Returns a chart of the number of samples generated for each useful group, by step.

    Args:
      group_size: group size of the config; 0: not known.
    """
    spans = _spans(useful.steps)
    x = [float(np.mean(useful.steps[span])) for span in spans]
    samples, groups = (
        np.array([one[span].sum() for span in spans], np.float64)
        for one in (useful.samples_s, useful.useful_s)
    )
    y = np.divide(samples, groups, out=np.full_like(samples, np.nan), where=groups > 0)
    names = [_span_name(useful.steps[span]) for span in spans]
    figure = go.Figure(layout=layout(STEP, "samples", hovermode="closest"))
    figure.add_scatter(
        x=x,
        y=y,
        name="generated per useful group",
        mode="lines+markers",
        marker={"size": 4},
        line={"color": COLOURS[0], "width": 2},
        customdata=np.array([names, samples.astype(int), groups.astype(int)], object).T,
        hovertemplate="%{customdata[0]}: %{y:.1f} (%{customdata[1]:,} samples, "
        "%{customdata[2]:,} useful groups)<extra></extra>",
    )
    if group_size:
        figure.add_scatter(
            x=[x[0], x[-1]],
            y=[group_size, group_size],
            name="group size",
            mode="lines",
            line={"color": NEUTRAL, "width": 1, "dash": "dash"},
            hoverinfo="skip",
        )
    figure.update_yaxes(rangemode="tozero")
    return Chart(
        "samples-per-useful-group",
        "Samples per useful group",
        "Samples of all groups generated in a step, over the groups of its batch whose rewards "
        "differ. It is above the group size if groups are rejected or dropped, wait for a later "
        "batch, or have equal rewards.",
        figure,
    )


def calibration_chart(bins: Sequence[Bin], without: int, not_kept: int) -> Chart:
    """Returns a chart of predicted and observed pass rates, with the samples of each bin below.

    Args:
      without: number of groups left out because their prompts had no pass rate.
      not_kept: number of groups left out because their samples are not kept.
    """
    predicted, observed, low, high = (
        np.array([getattr(one, name) for one in bins])
        for name in ("predicted", "observed", "low", "high")
    )
    counts = [(one.samples, one.groups) for one in bins]
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.06, row_heights=[3, 1])
    figure.update_layout(layout("", "", hovermode="closest"))
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="as predicted",
        mode="lines",
        line={"color": NEUTRAL, "width": 1, "dash": "dash"},
        hoverinfo="skip",
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=predicted,
        y=observed,
        name="observed, with 90 % intervals",
        mode="lines+markers",
        marker={"size": 6},
        line={"color": COLOURS[0], "width": 1.5},
        error_y={"array": high - observed, "arrayminus": observed - low, "thickness": 1.2},
        customdata=np.column_stack([low, high, counts]),
        hovertemplate="predicted %{x:.3f}, observed %{y:.3f} [%{customdata[0]:.3f}, "
        "%{customdata[1]:.3f}]: %{customdata[2]:,} samples of %{customdata[3]:,} groups"
        "<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_bar(
        x=predicted,
        y=[one.samples for one in bins],
        width=0.03,
        marker={"color": COLOURS[0]},
        showlegend=False,
        hovertemplate="predicted %{x:.3f}: %{y:,} samples<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_yaxes(title_text="passed", range=[-0.03, 1.03], row=1, col=1)
    figure.update_yaxes(title_text="samples", rangemode="tozero", nticks=3, row=2, col=1)
    figure.update_xaxes(range=[-0.03, 1.03], row=1, col=1)
    figure.update_xaxes(title_text="pass rate of the prompt before the group", row=2, col=1)
    left_out = f"{without:,} groups whose prompts had no pass rate are left out"
    if not_kept:
        left_out += f", and {not_kept:,} whose samples are not kept"
    return Chart(
        "calibration",
        "Predicted and observed pass rates",
        "The prediction is pass_rate_before, the mean of the prompt's earlier samples, in which "
        "older ones count less. The mean of the posterior is not recorded; pass_rate_before is "
        "more extreme if the samples are few, and lags behind a policy that learns. Exactly 0 and "
        f"exactly 1 are points of their own. {left_out}.",
        figure,
    )


def domain_chart(
    steps: Sequence[int],
    means: np.ndarray,
    domains: tuple[str, ...],
    asked: np.ndarray,
    half_life: float,
) -> list[Chart]:
    """Returns a chart of the mean pass rate of each domain over time; none without scored groups.

    Args:
      means: float [domains, steps].
      asked: int [domains], number of used prompts; the domains with most of them are plotted.
    """
    drawn = [i for i in np.argsort(-asked, kind="stable").tolist() if np.isfinite(means[i]).any()]
    if not drawn:
        return []
    several = domains != ONE_DOMAIN
    figure = go.Figure(layout=layout(STEP, "mean pass rate"))
    for colour, index in zip(COLOURS, drawn, strict=False):
        name = (one_line(domains[index], _LONGEST) or "(none)") if several else "all prompts"
        figure.add_scatter(
            x=thinned(steps),
            y=thinned(means[index]),
            name=name,
            mode="lines+markers" if len(steps) < 30 else "lines",
            marker={"size": 4},
            line={"color": colour, "width": 2},
            hovertemplate="%{y:.3f}",
        )
    figure.update_yaxes(range=[0, 1])
    caption = (
        "Mean over the prompts that were asked until then. Each prompt counts once, with the "
        f"samples of this run; a sample counts half after {half_life:g} versions. Prompts that are "
        "not chosen again keep their rate."
    )
    if (more := len(drawn) - len(COLOURS)) > 0:
        caption += f" {more:,} domains of which fewer prompts were asked have no line."
    title = "Pass rate by domain" if several else "Pass rate of the prompts"
    return [Chart("domain-rates", title, caption, figure)]
