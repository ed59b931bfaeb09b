"""Histories that are falsified before they are written: checksums are right, the story is not."""

from pathlib import Path

import pytest
from falsified import BACKWARDS, FALSIFIED, MIXED, Falsify, fewer_groups, fourth
from histories import History, place
from test_audited_episodes import FALSIFIED as FALSIFIED_EPISODES

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.tools.commands.audit import Report, Rule, audit


def audited(directory: Path, history: History) -> Report:
    files = RunFiles(directory)
    history.write(files)
    return audit(files)


@pytest.mark.parametrize(
    ("falsify", "rule", "segment", "step", "group_id"),
    [case[1:] for case in FALSIFIED],
    ids=[case[0] for case in FALSIFIED],
)
def test_the_first_violation_is_named(
    tmp_path: Path,
    falsify: Falsify,
    rule: Rule,
    segment: int,
    step: int | None,
    group_id: int | None,
) -> None:
    history = History()
    falsify(history)
    report = audited(tmp_path, history)
    assert place(report) == (rule, segment, step, group_id), report.violation
    assert report.violations[rule] >= 1


def test_every_rule_is_shown_to_be_found() -> None:
    shown = {case[2] for case in (*FALSIFIED, *FALSIFIED_EPISODES)}
    assert shown | {Rule.JOURNAL_BROKEN} == set(Rule)


def test_continue_allows_newer_versions_and_never_older_ones(tmp_path: Path) -> None:
    history = History()
    history.config["rollouts"]["on_new_weights"] = "continue"
    MIXED(history)
    assert audited(tmp_path / "newer", history).clean
    history = History()
    history.config["rollouts"]["on_new_weights"] = "continue"
    BACKWARDS(history)
    report = audited(tmp_path / "older", history)
    assert place(report) == (Rule.MIXED_VERSIONS, 4, None, 7)
    assert report.violation is not None
    assert report.violation.message.endswith(
        "(on_new_weights is continue), found 2, then 1, then 2"
    )


def test_the_bound_is_the_configs_and_its_default_one(tmp_path: Path) -> None:
    history = History()
    del history.config["staleness"]
    assert place(audited(tmp_path, history)) == (Rule.TOO_STALE, 2, 2, 3)


# Every batch has two groups of 2 + 3 tokens, in 2 + 2 samples of 3 and 4 positions.
BATCHES = [
    ("ten tokens", {"tokens": 10, "rows": 6}, None),
    ("six tokens, which need both groups", {"tokens": 6, "rows": 6}, None),
    ("five tokens, which one group has", {"tokens": 5}, "expected 5 tokens, reached by the last"),
    ("eleven tokens, for which there is room", {"tokens": 11, "rows": 6}, "expected 11 tokens"),
    ("eleven tokens, for which there may be none", {"tokens": 11, "rows": 5}, None),
    ("two rows", {"rows": 2}, "expected as many as fit 2 rows of 10, with 1 samples each"),
    ("two rows of two", {"rows": 2, "sequences_per_row": 2}, None),
    ("a row too short", {"rows": 1, "sequences_per_row": 4}, "as many as fit 1 rows of 10"),
]


@pytest.mark.parametrize(
    ("batches", "message"), [case[1:] for case in BATCHES], ids=[case[0] for case in BATCHES]
)
def test_batches_are_as_large_as_the_config_says(
    tmp_path: Path, batches: dict[str, int], message: str | None
) -> None:
    history = History()
    history.config["batches"] = batches
    history.config["rollouts"]["max_new_tokens"] = 8  # with 2 of the prompt, rows of 10
    report = audited(tmp_path, history)
    if message is None:
        assert report.violation is None
    else:
        assert place(report) == (Rule.WRONG_BATCH, 1, 1, None)
        assert report.violations == {"wrong-batch": 3}
        assert report.violation is not None and message in report.violation.message


def test_a_batch_may_be_small_where_one_more_group_may_not_fit(tmp_path: Path) -> None:
    history = History()
    history.config["batches"] = {"rows": 3, "sequences_per_row": 2}
    fewer_groups(history)
    violations = audited(tmp_path, history).violations
    # What becomes of group 4 is another matter.
    assert Rule.WRONG_BATCH not in violations and Rule.LOST_GROUP in violations


def test_other_weights_after_a_restart_are_a_warning(tmp_path: Path) -> None:
    history = History()
    fourth(history).replace(ev.Published(2, "d2"), ev.Published(2, "e2"))
    report = audited(tmp_path, history)
    assert report.clean
    (warning,) = report.warnings
    assert warning.startswith("segment 4: version 2 was published again with other weights")


def test_logged_samples_must_have_no_version_of_the_run(tmp_path: Path) -> None:
    history = History()
    history.config["logged_samples"] = {"path": "other.parquet"}
    report = audited(tmp_path, history)
    assert place(report)[0] == Rule.MIXED_VERSIONS
    assert report.violation is not None and "expected -1" in report.violation.message
