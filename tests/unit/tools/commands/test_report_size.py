"""A page holds what it can of a run's rollouts, and says how many it leaves out."""

from collections import Counter

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import journal, samples
from rlax_plugin.testing.builders import make_batch, make_group
from rlax_plugin.tools.commands.report.recorded_samples import GroupAt
from rlax_plugin.tools.commands.report.rollouts import choose, read_rollouts
from rlax_plugin.tools.commands.report.run import RunData, no_progress


def test_steps_are_evenly_represented():
    groups = [
        GroupAt("file", 40 * step + i, step, True, 8, size=1000.0)
        for step in range(1, 101)
        for i in range(20)
    ]
    chosen = choose(groups, max_rollouts=2400, max_bytes=1e9)
    assert sum(g.samples for g in chosen) == 2400
    by_step = Counter(g.step for g in chosen)
    assert len(by_step) == 100 and set(by_step.values()) <= {2, 3, 4}
    chosen = choose(groups, max_rollouts=10**6, max_bytes=50_000)
    assert len(chosen) == 50
    assert choose(groups, 10**6, 1e9) == sorted(groups, key=lambda g: (g.step, g.group))
    large = GroupAt("file", 0, 1, True, samples=8, size=60_000.0)
    assert len(choose([large, *groups], max_rollouts=10**6, max_bytes=50_000)) == 50


def test_groups_that_are_too_large_for_a_page_are_told(tmp_path):
    groups = [make_group([0.0] * 3, id=i, lengths=[n] * 3) for i, n in enumerate((400_000, 5))]
    rows = samples.of_batch(make_batch(1, groups))
    files, run = RunFiles(tmp_path), RunData("run", "")
    files.put(journal.samples_name(1), samples.to_parquet(1, rows))
    found = read_rollouts(files, run, no_progress)
    assert (found.shown, found.recorded) == (3, 6)
    assert "1 groups of rollouts, each of which is too large for a page" in run.missing
