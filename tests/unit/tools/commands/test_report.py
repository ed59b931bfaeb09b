"""What ``rlax report`` reads from records, and what it makes of it."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from histories import History, episode, sampled
from typer.testing import CliRunner

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.evaluation.result import Evaluated, record
from rlax_plugin.run.evaluation.statistics import Estimate
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.pruned import Pruned, write_pruned
from rlax_plugin.run.state.read_samples import as_batch, from_table, rows_of
from rlax_plugin.tools.cli import app
from rlax_plugin.tools.commands.report import charts, figures, page
from rlax_plugin.tools.commands.report.evaluations import Measured
from rlax_plugin.tools.commands.report.history import ACCEPTED
from rlax_plugin.tools.commands.report.repeats import repeats
from rlax_plugin.tools.commands.report.rollouts import read_rollouts, reward_names
from rlax_plugin.tools.commands.report.run import (
    RunData,
    no_progress,
    open_run,
    read_metrics,
    read_run,
)
from rlax_plugin.tools.commands.report.series import COLOURS, smoothed, thinned
from rlax_plugin.tools.commands.report.write import write_comparison, write_report


@pytest.fixture
def files(tmp_path) -> RunFiles:
    """A run of three steps that was restarted once and has not ended; see ``histories``."""
    found = RunFiles(tmp_path / "runs/mine")
    History().write(found)
    return found


def estimate(value: float) -> dict:
    return {"value": value, "n": 4, "problems": 8, "ci95": [value - 0.1, value + 0.1]}


def test_the_journal_is_told_step_by_step(files):
    history = read_run(files).history
    assert history is not None
    assert {step: dict(at.outcomes) for step, at in history.steps.items()} == {
        1: {ACCEPTED: 3, "too easy": 1},
        2: {ACCEPTED: 2},
        3: {ACCEPTED: 2, "dropped: its worker was quarantined": 1},
    }
    assert sorted(history.steps[1].scored) == [(prompt, 1, 2) for prompt in "abcd"]
    assert history.resumed == [2]
    assert list(history.dropped) == [6]


def test_what_is_missing_is_said(files):
    files.delete("metrics.jsonl")
    run = read_run(files)
    rollouts = read_rollouts(files, run, no_progress)
    said = "\n".join(run.missing)
    for part in ("metrics.jsonl", "summary.json", "evaluation/", "prompt source"):
        assert part in said
    assert "journal" not in said and "config.yml" not in said
    assert rollouts.shown == rollouts.recorded == 18
    assert figures.state(run) == "not ended"


def test_a_damaged_run_is_shown_as_far_as_it_can_be(files, tmp_path):
    files.put("metrics.jsonl", b'{"step": 1, "reward/mean": 0.5}\n{"step": 2, "rew')
    segment = tmp_path / "runs/mine" / journal.segment_name(2)
    segment.write_bytes(segment.read_bytes()[:-20])
    files.put(journal.samples_name(2), b"PAR1")
    files.put("summary.json", b"{")
    run = read_run(files)
    rollouts = read_rollouts(files, run, no_progress)
    assert run.metrics == {"reward/mean": [0.5], "step": [1.0]}
    assert run.history is not None and list(run.history.steps) == [1]
    assert rollouts.recorded == 16  # group 4 was in that file only
    said = "\n".join(run.missing)
    for part in (
        "journal segment 2",
        f"{journal.samples_name(2)} is damaged",
        "summary.json is dam",
    ):
        assert part in said


def test_a_step_that_is_recorded_twice_has_its_last_line(tmp_path):
    files, missing = RunFiles(tmp_path), list[str]()
    with pytest.raises(RlaxError, match="no step has ended yet"):
        read_metrics(files, missing)
    lines = b'{"step": 1, "a": 1}\nnot JSON\n{"step": 2, "b": 2}\n{"step": 2, "b": 3}\n{"step": 3'
    files.put("metrics.jsonl", lines)
    nan = pytest.approx(float("nan"), nan_ok=True)
    assert read_metrics(files, missing) == {"a": [1.0, nan], "b": [nan, 3.0], "step": [1.0, 2.0]}
    assert missing == ["metrics.jsonl: 1 damaged lines are left out (line 2)"]


def test_steps_without_metrics_are_named(files):
    files.put("metrics.jsonl", b'{"step": 1}\n{"step": 3}\n{"step": 4}\n{"step": 7}\n')
    sentence = "metrics.jsonl: 3 of 7 steps have no line (step 2, 5, 6)"
    assert [one for one in read_run(files).missing if "metrics" in one] == [sentence]
    files.put_json("summary.json", {"complete": True, "steps": 9})
    assert (
        "metrics.jsonl: 5 of 9 steps have no line (step 2, 5, 6, 8, 9)" in read_run(files).missing
    )


def test_what_is_not_kept_is_said(files):
    write_pruned(files, Pruned(until=2, step=2))
    files.delete(journal.samples_name(1))
    files.delete(journal.samples_name(2))
    run = read_run(files)
    rollouts = read_rollouts(files, run, no_progress)
    assert rollouts.shown == rollouts.recorded == 8  # groups 5, 6, 7 and 9
    said = "the samples of steps 1 to 2 are not kept (rlax.retention): no rollout of these steps is"
    assert [sentence.startswith(said) for sentence in run.missing].count(True) == 1
    assert not any("is empty" in sentence and "samples" in sentence for sentence in run.missing)


def test_each_sample_is_shown_as_it_was_recorded(files):
    run = read_run(files)
    index = json.loads(read_rollouts(files, run, no_progress).index)
    columns = index["columns"]
    fates = dict(zip(columns["group"], (index["fates"][f] for f in columns["fate"]), strict=True))
    assert fates[0] == fates[7] == "trained"
    assert fates[2] == "rejected: too easy"
    assert fates[6] == "dropped: its worker was quarantined"
    assert fates[9] == "not yet trained"
    row = columns["group"].index(4) + 1  # its second sample
    assert (columns["sample"][row], columns["completion"][row]) == (1, "answer 1")
    assert columns["seed"][row] == str(2**63 + 401)  # more than a double holds
    assert (columns["reward"][row], columns["tokens"][row]) == (1.0, 3)
    assert columns["logprob"][row] == pytest.approx(-0.1)
    assert index["prompts"][columns["prompt"][row]]["text"] == "text of e"


def test_tokens_come_in_chunks_with_runs_of_versions(files):
    name = journal.samples_name(4)
    batch = as_batch(3, from_table(rows_of(files.get(name), name)))
    (group, *others), last = batch.groups, batch.groups[0].episodes[1]
    first = sampled(
        group.id,
        0,
        [1, 1, 2],
        tokens=np.array([7, 8, 9], np.int32),
        logprobs=np.array([-0.25, -np.inf, -1.0004], np.float32),
    )
    changed = replace(group, episodes=(episode(0, first), last))
    rows = samples.of_batch(replace(batch, groups=(changed, *others)))
    files.put(name, samples.to_parquet(3, rows))
    found = read_rollouts(files, read_run(files), no_progress)
    chunk = json.loads(found.chunks[0])
    at = chunk["tokens"].index([7, 8, 9])
    assert chunk["versions"][at] == [1, 2, 2, 1]
    assert chunk["logprobs"][at] == [-250, -1_000_000, -1000]


def test_evaluations_of_several_sets_and_of_other_settings(files):
    before = {"version": 0, "sets": {"test": {"pass_at_1": estimate(0.25)}}}
    files.put_json("evaluation/before.json", before)
    sets = {
        "test": {"pass_at_1": estimate(0.5), "length_mean": estimate(3.0)},
        "hard": {"majority_at_4": estimate(0.2)},
    }
    for name, version in (("step-00000002", 2), ("after", 3)):
        document = {"version": version, "pass_at_1": estimate(0.5), "sets": sets}
        files.put_json(f"evaluation/{name}.json", document)
    other = {"version": 3, "overrides": ["rlax.seed=1"], "sets": sets}
    files.put_json("evaluation/eval-00000003-2.json", other)
    run = read_run(files)
    (sentence,) = (s for s in run.missing if "eval-" in s)
    assert sentence == (
        "evaluation/eval-00000003-2.json was measured with rlax.seed=1 and is on no curve: "
        "version 3, majority@4 0.200 on hard, pass@1 0.500 on test"
    )
    passed = [m for m in run.measured if m.label == "pass@1"]
    assert [(m.held_out, m.moment, m.version) for m in passed] == [
        ("test", "before", 0),
        ("test", "step-00000002", 2),
        ("test", "after", 3),
    ]
    changes = {(c.held_out, c.label): c for c in page.changes(run)}
    assert changes["test", "pass@1"].before == "0.250 [0.150, 0.350]"
    assert changes["test", "pass@1"].change == "+25.0 points"
    assert changes["hard", "majority@4"].before == changes["hard", "majority@4"].change == "–"  # noqa: RUF001
    learning = next(s for s in charts.sections([run]) if s.title == "Learning")
    titles = {chart.figure.layout.yaxis.title.text for chart in learning.charts}
    assert titles == {"problems solved, %", "length mean, tokens"}
    solved = next(c for c in learning.charts if c.key == "evaluation-test-problems solved")
    drawn = solved.figure.data[-1]
    assert list(drawn.x) == [0, 2, 3] and list(drawn.y) == [25, 50, 50]
    assert list(drawn.error_y.array) == pytest.approx([10, 10, 10])


def test_a_step_without_scored_groups_has_no_reward(files):
    rows = [
        {"step": 1, "reward/mean": 0.5, "curation/groups_scored": 4.0},
        {"step": 2, "curation/groups_scored": 0.0},
        {"step": 3, "reward/mean": 0.75, "curation/groups_scored": 4.0},
    ]
    files.put("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    run = read_run(files)
    assert run.metrics["reward/mean"] == pytest.approx([0.5, np.nan, 0.75], nan_ok=True)
    assert {f.name: f.value for f in figures.figures(run)}["reward"] == "0.625 → 0.625"


def test_runs_with_many_measures_and_one_that_has_just_begun_are_overlaid():
    metrics = {"step": [1.0, 2.0], "time/step_s": [1.0, 3.0], "time/train_s": [1.0, 1.0]}
    metrics |= {f"reward_part/r{i}": [i / 10, i / 5] for i in range(9)}
    runs = [RunData("a", "a", metrics=metrics), RunData("b", "b")]
    found = {c.key: c.figure for s in charts.sections(runs) for c in s.charts}
    lines = [line for i in range(9) for line in found[f"reward-part-r{i}"].data]
    assert [list(t.y) for t in lines] == [[i / 10, i / 5] for i in range(9)]
    assert {(t.name, t.line.color) for t in lines} == {("a", COLOURS[0])}
    (times,) = found["step-time"].data
    assert (times.name, list(times.y)) == ("a", [1.0, 3.0])
    alone = {c.key: c.figure for s in charts.sections(runs[:1]) for c in s.charts}
    assert len({t.line.color for t in alone["reward-parts"].data}) == 8


def test_means_over_neighbours():
    values = np.array([1.0, np.nan, 3.0, 8.0, 4.0])
    assert smoothed(values, 3) == pytest.approx([1.0, np.nan, 5.5, 5.0, 6.0], nan_ok=True)
    many = np.arange(2500.0)
    assert len(thinned(many)) == 834
    assert thinned(many)[:2].tolist() == [1.0, 4.0] and thinned(many)[-1] == 2499.0


def test_configs_and_figures_side_by_side():
    one = RunData("one", "/runs/one", config={"steps": 5, "rlax": {"seed": 0, "trackers": []}})
    two = RunData("two", "/runs/two", config={"steps": 5, "rlax": {"seed": 1}})
    one.metrics = {"step": [1.0, 2.0], "reward/mean": [0.25, 0.5]}
    two.summary = {"complete": True, "wall_s": 606.0, "groups_issued": 12, "groups_accepted": 9}
    missing = "\N{EN DASH}"
    assert page.config_differences([one, two]) == [
        ("rlax.seed", ["0", "1"]),
        ("rlax.trackers", ["[]", missing]),
    ]
    rows = dict(page.side_by_side([one, two]))
    assert rows["state"] == ["not ended", "complete"]
    assert rows["reward"] == ["0.375 → 0.375", missing]
    assert "wall time" not in rows and rows["time of all steps"][0] == missing
    assert rows["groups issued"] == [missing, "12"]


def test_the_time_of_a_restarted_run_is_that_of_all_its_steps():
    run = RunData("one", "/runs/one", metrics={"step": [1.0, 2.0], "time/step_s": [50.0, 40.0]})
    run.summary = {"wall_s": 45.0, "trainer_restarts": 1}
    shown = {figure.name: figure.value for figure in figures.figures(run)}
    assert shown["wall time"] == "1 min 30 s"
    whole = replace(run, summary={"wall_s": 400.0})
    rows = dict(page.side_by_side([run, whole]))
    assert rows["time of all steps"] == ["1 min 30 s"] * 2 and "wall time" not in rows


def test_runs_over_the_same_problems_are_compared_problem_by_problem(files, tmp_path):
    """Each problem alone is uncertain; that every second one got better is not."""
    other = RunFiles(tmp_path / "runs/other")
    History().write(other)
    elsewhere = RunFiles(tmp_path / "runs/elsewhere")
    History().write(elsewhere)
    for run, counts, digest in (
        (files, (0, 4) * 20, "abc"),
        (other, (1, 4) * 20, "abc"),
        (elsewhere, (1, 4) * 20, "xyz"),
    ):
        share = sum(counts) / 4 / len(counts)
        measures = {"pass_at_1": Estimate(share, 4, len(counts), (share - 0.2, share + 0.2))}
        record(run, "after", Evaluated(3, {"test": measures}, {}, {"test": counts}))
        run.put_json("prompts/prompts.json", {"evaluation set test": {"digest": digest}})
    rows = dict(page.side_by_side([read_run(run) for run in (files, other, elsewhere)]))
    first, paired, apart = rows["pass@1 on test, change from mine"]
    assert (first, apart) == ("\N{EN DASH}", "other prompts or another tokenizer")
    change, low, high = re.fullmatch(r"(\S+) points \[(\S+), (\S+)\]", paired).groups()
    assert change == "+12.5" and 8 < float(low) < 12.5 < float(high) < 17


def test_a_damaged_record_of_an_evaluation_is_named_once(files):
    measures = {"pass_at_1": Estimate(0.5, 4, 2, (0.3, 0.7))}
    record(files, "after", Evaluated(3, {"test": measures}, {}, {"test": (2, 2)}))
    files.put_json("prompts/prompts.json", {"evaluation set test": {}})
    damaged = [line for line in read_run(files).missing if "damaged" in line]
    assert damaged == ["prompts/prompts.json is damaged: KeyError('digest')"]
    files.put("evaluation/after.json", b'{"version": 3}')
    damaged = [line for line in read_run(files).missing if "damaged" in line]
    assert len(damaged) == 1 and damaged[0].startswith("evaluation/after.json is damaged")


def test_a_run_that_is_not_there_is_one_clear_error(files, tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean '.*/runs/mine'\?"):
        open_run(str(tmp_path / "runs/mime"))
    with pytest.raises(ConfigError, match="runs in it: mine"):
        open_run(str(tmp_path / "runs"))
    (tmp_path / "runs/empty").mkdir()
    with pytest.raises(
        ConfigError, match=r"it contains none of [^;]*$"
    ):  # it is not its own nearest match
        open_run(str(tmp_path / "runs/empty"))
    with pytest.raises(ConfigError, match=r"'9 runs': give at most 8 runs, .* 8 colours"):
        write_comparison([files.location()] * 9)
    with pytest.raises(ConfigError, match=r"--out.*cannot be written"):
        write_report(files.location(), f"{files.location('config.yml')}/page.html")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs/mime")])
    assert result.exit_code == 2 and "is not a run directory" in result.output


def test_runs_of_one_name_are_told_apart(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = RunFiles(tmp_path / "others/mine")
    History().write(other)
    path = write_comparison([files.location(), other.location()])
    page = path.read_text()
    assert str(path) == "compare.html"
    assert "1: runs/mine" in page and "2: others/mine" in page


def test_a_verdict_is_on_the_page_as_text(files, tmp_path):
    sentence = "The run ended below its beginning: pass@1 on <b>test</b> fell."
    files.put_json("summary.json", {"verdict": {"outcome": "worse", "sentence": sentence}})
    assert figures.verdict(read_run(files)) == sentence
    page = write_report(files.location(), str(tmp_path / "page.html"))
    shown = "The run ended below its beginning: pass@1 on &lt;b&gt;test&lt;/b&gt; fell."
    assert f'<p id="verdict">{shown}</p>' in page.read_text()
    for nothing in ({}, {"verdict": None}, {"verdict": {"sentence": None}}, {"verdict": [1]}):
        files.put_json("summary.json", {"steps": 3, **nothing})
        assert figures.verdict(read_run(files)) == ""


def test_rewards_of_a_sample_are_named_as_in_metrics():
    rewards = [
        {"name": "plugin:numeric"},
        {"function": "rewards.py:brief", "weight": 0.1},
        {"name": "format", "label": "worked", "weight": 0},
        {"name": "numeric", "weight": 2},
    ]
    run = RunData("a", "a", config={"rlax": {"rewards": rewards}})
    of_it = ["numeric_0", "brief, weight 0.1", "worked, weight 0", "numeric_3, weight 2"]
    assert reward_names(run) == of_it


def repeated(name: str, seed: int, rate: float, rewards: list[float], **more) -> RunData:
    config = {"learning_rate": rate, "rlax": {"seed": seed}}
    steps = [float(step) for step in range(1, len(rewards) + 1)]
    return RunData(name, name, config, metrics={"step": steps, "reward/mean": rewards}, **more)


def test_runs_with_the_same_value_of_a_key_are_one_line_with_their_range():
    def solved(value: float) -> Measured:
        return Measured("after", "test", "pass_at_1", 2, Estimate(value, 4, 8, (0.0, 1.0)))

    runs = [
        repeated("a", 0, 1e-3, [0.25, np.nan, 0.5], measured=(solved(0.5),)),
        repeated("c", 0, 5e-4, [0.75, 0.5], measured=(solved(0.25),)),
        repeated("b", 1, 1e-3, [0.75, 0.5], measured=(solved(0.75),)),
    ]
    few, mean = repeats(runs, "learning_rate")
    assert (few.name, mean.name) == ("learning_rate 0.0005, one run", "learning_rate 0.001, 2 runs")
    assert few.metrics == runs[1].metrics and not few.ranges
    assert mean.steps == [1, 2]
    assert mean.metrics["reward/mean"] == pytest.approx([0.5, np.nan], nan_ok=True)
    found = {c.key: c for s in charts.sections([few, mean]) for c in s.charts}
    area, line = found["reward"].figure.data[1:]
    assert (list(area.x), list(area.y)) == ([1, 1], [0.75, 0.25]) and area.fillcolor == COLOURS[1]
    assert line.y[0] == 0.5 and "areas their range" in found["reward"].caption
    alone, point = found["evaluation-test-problems solved"].figure.data[1:]
    assert (alone.y[0], alone.error_y.array[0], alone.error_y.arrayminus[0]) == (25, 75, 25)
    assert (point.y[0], point.error_y.array[0], point.error_y.arrayminus[0]) == (62.5, 12.5, 12.5)
    caption = found["evaluation-test-problems solved"].caption
    assert caption.startswith("Points are means of runs, bars their range; of one run alone, 95 %")
    (one,) = repeats([repeated("a", 0, 1, [0.5]), repeated("b", 1, 1.0, [0.75])], "learning_rate")
    assert one.name == "learning_rate 1, 2 runs" and one.metrics["reward/mean"] == [0.625]
    with pytest.raises(ConfigError, match=r"--by = 'rlax\.sed': .* did you mean 'rlax\.seed'"):
        repeats(runs, "rlax.sed")


def test_a_step_or_a_run_without_a_count_has_counted_none_in_the_mean_of_runs():
    runs = [repeated(name, seed, 1e-3, [0.5] * 3) for seed, name in enumerate("ab")]
    runs[0].metrics |= {"episode_ended/late": [4, np.nan, 2]}
    runs[1].metrics |= {"episode_ended/late": [4, 6, np.nan], "episode_ended/lost": [2, 0, 2]}
    (mean,) = repeats(runs, "learning_rate")
    assert mean.metrics["episode_ended/late"] == [4, 3, 1]
    assert mean.metrics["episode_ended/lost"] == [1, 0, 1]
    low, high = mean.ranges["episode_ended/late"]
    assert (low.tolist(), high.tolist()) == ([4, 0, 0], [4, 6, 2])
    found = {c.key: c for s in charts.sections([mean]) for c in s.charts}
    assert {(4, 3, 1), (1, 0, 1)} <= {tuple(line.y) for line in found["endings"].figure.data}


def test_a_page_of_more_runs_than_colours_has_a_column_for_each_and_one_line(files, tmp_path):
    path = write_comparison([files.location()] * 9, str(tmp_path / "page.html"), by="steps")
    text = path.read_text()
    assert "<h1>9 runs</h1>" in text and "9: runs/mine" in text and text.count("9 runs</li>") == 2
    result = CliRunner().invoke(app, ["report", files.location(), "--by", "steps"])
    assert result.exit_code == 2 and "is for several runs" in result.output
