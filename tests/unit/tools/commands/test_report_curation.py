"""The report's section on curation: its figures are those of records written by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from histories import History, group

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Rejected, SamplingParams, Score
from rlax_plugin.data.curation.pass_rate_files import About, measured, packed
from rlax_plugin.run.state import events as ev
from rlax_plugin.tools.commands.report.curation import curation_section, fates, useful_figures
from rlax_plugin.tools.commands.report.history import ACCEPTED, StepEvents
from rlax_plugin.tools.commands.report.history import History as Told
from rlax_plugin.tools.commands.report.run import RunData, read_run
from rlax_plugin.tools.commands.report.series import Section

SAMPLING = SamplingParams(
    max_new_tokens=4, temperature=1.0, top_k=0, top_p=1.0, stop_ids=(), stop_strings=()
)
# id -> samples that passed and failed, groups, domain. z: of a prior alone; h is not there.
RATES = {
    "a": (1, 1, 1, "x"),
    "b": (2, 1, 2, "x"),
    "c": (0, 6, 3, "x"),
    "d": (2, 2, 1, "y"),
    "e": (6, 0, 3, "y"),
    "f": (3, 1, 2, "y"),
    "g": (4, 1, 1, "y"),
    "z": (0, 99, 0, "y"),
}


def rates() -> bytes:
    ids, rows = list(RATES), list(zip(*RATES.values(), strict=True))
    columns = dict(zip(("passed", "failed", "groups", "domain"), rows, strict=True))
    counts = {n: np.array(columns[n], np.float64) for n in ("passed", "failed")}
    about = About("run", None, 3, SAMPLING, pass_threshold=0.5)
    groups, domain = columns["groups"], columns["domain"]
    return packed(measured({"id": ids, **counts, "groups": groups, "domain": domain}, about))


def rewarded(number: int, version: int, prompt: str, *rewards: float, **changes):
    scores = tuple(Score(reward, (2 * reward,)) for reward in rewards)
    made = group(number, version, prompt, **changes)
    return replace(made, scores=scores, episodes=made.episodes[: len(scores)])


@pytest.fixture
def files(tmp_path) -> RunFiles:
    """The run of ``histories`` with other rewards and pass rates, and a snapshot with rates.

    0 has no pass rate before, that of 1 is 0, that of 7 is 1, and of the others 1/4. 2 is screened
    after one sample; all samples of 4 and 9 pass; 10 is cancelled.
    """
    found, history = RunFiles(tmp_path / "runs/mine"), History()
    first, second, _, third, last = history.segments
    of = history.groups
    screened = rewarded(2, 0, "c", 0.0)
    screened = Rejected(screened, "screened: none of 1 passed")
    first.rescore(of[2], screened)
    first.rescore(of[0], rewarded(0, 0, "a", 0.0, 1.0, pass_rate_before=None))
    first.rescore(of[1], rewarded(1, 0, "b", 0.0, 1.0, pass_rate_before=0.0))
    second.rescore(of[4], rewarded(4, 0, "e", 1.0, 1.0))
    third.rescore(of[7], rewarded(7, 2, "h", 0.0, 1.0, attempt=2, pass_rate_before=1.0))
    last.rescore(of[9], rewarded(9, 2, "b", 1.0, 1.0))
    last.events.append(ev.Dropped(10, "no longer needed", samples=2, tokens=7))
    history.write(found)
    found.put("controller/00000003.pass_rates.parquet", rates())
    training = {"rows": 20}
    found.put_json("prompts/prompts.json", {"training": training})
    return found


def section(files: RunFiles) -> Section:
    run = read_run(files)
    found = curation_section(files, run)
    assert not any("controller" in sentence or "damaged" in sentence for sentence in run.missing)
    return found


def chart(found: Section, key: str):
    return next(c for c in found.charts if c.key == key)


def test_each_group_counts_once_where_it_was_scored(files):
    bars = {bar.name: list(bar.y) for bar in chart(section(files), "outcomes").figure.data}
    assert bars == {
        "accepted": [3, 2, 2],  # 0 1 3, 4 5, 7 9
        "rejected: screened: none of 1 passed": [1, 0, 0],
        "dropped: its worker was quarantined": [0, 0, 1],
        "dropped: no longer needed": [0, 0, 1],
    }


def test_pass_rates_are_shares_of_the_scored_groups(tmp_path):
    files = RunFiles(tmp_path)
    History().write(files)
    found = curation_section(files, read_run(files))
    (heat,) = chart(found, "pass-rates").figure.data
    assert list(heat.y) == [0, 50, 100] and list(heat.x) == [1, 2, 3]
    assert np.asarray(heat.z).tolist() == [[0, 0, 0], [100, 100, 100], [0, 0, 0]]


def test_rare_reasons_are_put_together():
    outcomes = Counter({ACCEPTED: 3, **{f"reason {i}": 20 - i for i in range(10)}})
    told = Told(steps={1: StepEvents(outcomes=outcomes)})
    bars = {bar.name: bar.y[0] for bar in fates(told).figure.data}
    assert len(bars) == 8 and bars["rejected: reason 5"] == 15
    assert bars["other reasons"] == 14 + 13 + 12 + 11
    assert sum(bars.values()) == sum(outcomes.values())
    eight = StepEvents(outcomes=Counter(dict(outcomes.most_common(7))))  # and accepted
    bars_of_eight = fates(Told(steps={1: eight})).figure.data
    assert len(bars_of_eight) == 8 and "other reasons" not in {bar.name for bar in bars_of_eight}


def test_samples_per_useful_group():
    metrics = {
        "step": [1.0, 2.0, 3.0],
        "rollout/samples": [7.0, 4.0, 6.0],
        "batch/groups": [2.0, 2.0, 2.0],
        "batch/groups_equal": [0.0, 0.5, 0.0],
    }
    run = RunData("run", "", config={"rlax": {"rollouts": {"group_size": 2}}}, metrics=metrics)
    useful, mixed = useful_figures(run)
    assert useful.value == "3.4"
    assert useful.remark == "17 samples, 5 useful groups; 2 if no group is wasted"
    assert (mixed.value, mixed.remark) == ("83.3 %", "5 of 6 groups that trained")
    assert useful_figures(RunData("run", "")) == []


def test_pass_rates_by_domain(files):
    lines = {line.name: line for line in chart(section(files), "domain-rates").figure.data}
    assert list(lines) == ["y", "x"]  # of y more prompts were asked; that of h is not known
    assert all(list(line.x) == [1, 2, 3] for line in lines.values())
    # Step 1: a, b and c, of which c has one sample, and d; step 2: e and f; step 3: g and b.
    assert list(lines["x"].y) == pytest.approx([40, np.nan, 100], nan_ok=True)
    assert list(lines["y"].y) == pytest.approx([50, 75, 50])


def test_prompts_never_asked(files):
    figures = {f.name: (f.value, f.remark) for f in section(files).figures}
    assert figures["prompts never asked"] == ("12", "60.0 % of 20")


def test_a_run_without_snapshot_and_record_of_prompts(files):
    for name in ("controller/00000002.json", "controller/00000003.json", "prompts/prompts.json"):
        files.delete(name)
    found = section(files)
    assert not found.figures and [c.key for c in found.charts] == ["outcomes", "pass-rates"]
