"""The report's section on curation: its figures are those of records written by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from histories import History, group
from scipy.special import betaincinv

from rlax_plugin.commands.report.curation import (
    calibration,
    curation_section,
    fates,
    share_interval,
)
from rlax_plugin.commands.report.history import ACCEPTED, StepEvents
from rlax_plugin.commands.report.history import History as Told
from rlax_plugin.commands.report.rollouts import read_rollouts
from rlax_plugin.commands.report.run import no_progress, read_run
from rlax_plugin.commands.report.section import Section
from rlax_plugin.commands.report.write import write_report
from rlax_plugin.pass_rates.files import About, measured, packed
from rlax_plugin.records import events as ev
from rlax_plugin.records.files import RunFiles
from rlax_plugin.types import Rejected, SamplingParams, Score

EVIL = "</div><script>alert(1)</script>\u202e"
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
    long = replace(screened.episodes[0], text=f"{EVIL}{'long ' * 1000}")
    screened = Rejected(replace(screened, episodes=(long,)), "screened: none of 1 passed")
    first.rescore(of[2], screened)
    first.rescore(of[0], rewarded(0, 0, "a", 0.0, 1.0, pass_rate_before=None))
    first.rescore(of[1], rewarded(1, 0, "b", 0.0, 1.0, pass_rate_before=0.0))
    second.rescore(of[4], rewarded(4, 0, "e", 1.0, 1.0))
    third.rescore(of[7], rewarded(7, 2, "h", 0.0, 1.0, attempt=2, pass_rate_before=1.0))
    last.rescore(of[9], rewarded(9, 2, "b", 1.0, 1.0))
    last.events.append(ev.Dropped(10, "no longer needed", samples=2, tokens=7))
    history.config["curation"] = {"pass_rate_half_life": 1.0}
    history.write(found)
    found.put("controller/00000003.pass_rates.parquet", rates())
    training = {"rows": 20, "domains": {"x": 12, "y": 8}}
    found.put_json("prompts/prompts.json", {"training": training})
    return found


def section(files: RunFiles) -> Section:
    run = read_run(files)
    found = curation_section(files, run, read_rollouts(files, run, no_progress).groups)
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


def test_rare_reasons_are_put_together():
    outcomes = Counter({ACCEPTED: 3, **{f"reason {i}": 20 - i for i in range(10)}})
    told = Told(steps={1: StepEvents(outcomes=outcomes)})
    bars = {bar.name: bar.y[0] for bar in fates(told).figure.data}
    assert len(bars) == 8 and bars["rejected: reason 5"] == 15
    assert bars["other reasons"] == 14 + 13 + 12 + 11
    assert sum(bars.values()) == sum(outcomes.values())


def test_samples_per_useful_group(files):
    found = section(files)
    figures = {f.name: (f.value, f.remark) for f in found.figures}
    # Samples: 7 + 4 + 6; of the six groups that trained, 4 has equal rewards.
    remark = "17 samples, 5 useful groups; 2 if no group is wasted"
    assert figures["samples per useful group"] == ("3.4", remark)
    assert figures["trained with mixed rewards"] == ("83.3 %", "5 of 6 groups that trained")
    assert figures["saved by cancelling"] == ("2 samples", "about 7 tokens")
    line, size = chart(found, "samples-per-useful-group").figure.data
    assert list(line.x) == [1, 2, 3] and list(line.y) == [3.5, 4.0, 3.0]
    assert list(size.y) == [2, 2]


def test_without_samples_passes_say_which_groups_were_useful(files):
    found = curation_section(files, read_run(files), [])
    useful = next(f for f in found.figures if f.name == "trained with mixed rewards")
    assert useful.remark == "5 of 6 groups that trained; 6 of them by passed samples alone"
    assert "no predictions to compare" in found.note
    assert not found.prompts and all(c.key != "calibration" for c in found.charts)


def test_predicted_and_observed_pass_rates(files):
    found = chart(section(files), "calibration")
    _, points, counts = found.figure.data
    assert list(points.x) == [0.0, 0.25, 1.0]
    # 2 3 4 5 6 9, of which 2 has one sample: 0 + 1 + 2 + 1 + 1 + 2 of 11.
    assert list(points.y) == pytest.approx([1 / 2, 7 / 11, 1 / 2])
    assert list(counts.y) == [2, 11, 2]
    assert points.customdata[:, 3].tolist() == [1, 6, 1]
    assert "1 groups whose prompts had no pass rate are left out." in found.caption
    assert "pass_rate_before" in found.caption and "posterior is not recorded" in found.caption


def test_samples_of_one_prompt_widen_the_interval():
    prompts, eight = np.arange(4), np.full(4, 8)
    # Variance 4/3 * 4 * 4**2 / 32**2 = 1/12, that of 3 independent samples: Beta(2, 2), whose
    # distribution function is 3 x**2 - 2 x**3.
    low, high = share_interval(np.array([8, 0, 8, 0]), eight, prompts)
    assert 3 * low**2 - 2 * low**3 == pytest.approx(0.05)
    assert high == pytest.approx(1 - low)
    # Two prompts of 16 samples, variance 2 * 2 * 8**2 / 32**2 = 1/4, that of one: Beta(1, 1).
    half = share_interval(np.array([8, 8, 0, 0]), eight, np.array([0, 0, 1, 1]))
    assert half == pytest.approx((0.05, 0.95))
    none = share_interval(np.zeros(4, int), eight, prompts)
    assert none == pytest.approx((0.0, betaincinv(0.5, 32.5, 0.95)))
    # As even as can be: no narrower than of independent samples.
    even = share_interval(np.full(4, 4), eight, prompts)
    assert even == pytest.approx(tuple(betaincinv(16.5, 16.5, np.array([0.05, 0.95]))))


def test_bins_weigh_groups_by_their_scored_samples():
    before = np.array([0.0, 0.04, 0.06, 0.9, 1.0])
    bins = calibration(before, np.array([1, 0, 6, 2, 4]), np.array([2, 2, 8, 2, 4]), np.arange(5))
    assert [(b.groups, b.samples) for b in bins] == [(1, 2), (2, 10), (1, 2), (1, 4)]
    assert bins[1].predicted == pytest.approx(0.056) and bins[1].observed == 0.6
    assert all(b.low <= b.observed <= b.high for b in bins)


def test_pass_rates_by_domain_count_each_prompt_once(files):
    lines = {line.name: line for line in chart(section(files), "domain-rates").figure.data}
    assert list(lines) == ["y", "x"]  # of y more prompts were asked; that of h is not known
    # a 1/2, b 1/2, c 0; then b, whose first samples are two half-lives old: (2 + 1/4) / (2 + 1/2).
    assert list(lines["x"].y) == pytest.approx([1 / 3, 1 / 3, (0.5 + 0.9 + 0.0) / 3])
    # d 1/2; e 1 and f 1/2; g 1/2.
    assert list(lines["y"].y) == pytest.approx([1 / 2, 2 / 3, 2.5 / 4])


def test_prompts_never_asked(files):
    found = section(files)
    figures = {f.name: (f.value, f.remark) for f in found.figures}
    assert figures["prompts never asked"] == ("12", "60.0 % of 20")
    (table,) = found.tables
    assert [list(row) for row in table.rows] == [
        ["all", "20", "8", "12", "60.0 %"],
        ["x", "12", "3", "9", "75.0 %"],
        ["y", "8", "4", "4", "50.0 %"],
    ]
    assert "no pass rate in the newest snapshot, which also records the domains: 1." in found.note


def test_hardest_and_easiest_prompts(files):
    hardest, easiest = section(files).prompts
    assert list(hardest.columns) == ["passed", "rate", "90 % interval", "groups", "domain"]
    first = hardest.prompts[0]
    # Beta(1, 7): 1 - (1 - x)**7.
    interval = f"{1 - 0.95 ** (1 / 7):.3f} to {1 - 0.05 ** (1 / 7):.3f}"
    assert list(first.facts) == ["0 of 6", "0.125", interval, "3", "x"]
    assert first.text == "text of c"
    assert [prompt.text[-1] for prompt in hardest.prompts] == ["c", "a", "d", "b", "f", "g"]
    assert [prompt.text[-1] for prompt in easiest.prompts] == ["e"]
    (cut,) = first.samples
    assert cut.reward == "0" and len(cut.text) == 1504 and cut.text.endswith(" ...")
    newest_of_b = hardest.prompts[3].samples
    assert [(s.reward, s.text) for s in newest_of_b] == [("1", "answer 0")]  # equal rewards
    of_d = hardest.prompts[2].samples
    assert [(s.reward, s.text) for s in of_d] == [("1", "answer 1"), ("0", "answer 0")]


def test_what_a_model_wrote_is_text_on_the_page(files, tmp_path):
    page = write_report(files.location(), str(tmp_path / "page.html")).read_text()
    assert 'href="#section-rollouts-and-data"' in page
    assert "<script>alert" not in page and "\u202e" not in page
    assert page.count("&lt;/div&gt;&lt;script&gt;alert(1)") == 1


def test_a_run_without_snapshot_and_record_of_prompts(files):
    for name in ("controller/00000002.json", "controller/00000003.json", "prompts/prompts.json"):
        files.delete(name)
    found = section(files)
    assert not found.prompts and not found.tables
    for sentence in ("has no snapshot yet", "How many prompts the run has is not recorded"):
        assert sentence in found.note
    (line,) = chart(found, "domain-rates").figure.data
    assert line.name == "all prompts"
