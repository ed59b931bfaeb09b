"""What the audit knows of several environments, and of batches that look ahead."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.tools.commands.audit import Report, Rule
from rlax_plugin.tools.commands.audit.event_order import History
from rlax_plugin.tools.commands.audit.record_limits import Limits, read_limits
from rlax_plugin.tools.commands.audit.report import Figures, Findings

SHARED = {"a": {"weight": 1}, "b": {"weight": 1}}


def limits_of(directory: Path, environments: dict[str, Any] | None = None, **more: Any) -> Limits:
    own = {n: {"prompt_source": {"name": "x"}, **o} for n, o in (environments or {}).items()}
    rollouts = {"group_size": 1, "groups_per_step": 2}
    content = {"rewards": [{"name": "x"}], "rollouts": rollouts, "environments": own, **more}
    files = RunFiles(directory)
    files.put("config.yml", yaml.safe_dump({"rlax": content}).encode())
    return read_limits(files)


def audited(limits: Limits, prompts: list[str], accepted: list[int], batch: list[int]) -> Report:
    """Groups of these prompts are issued, some of them accepted, and the first batch is made."""
    report = Report("x")
    history = History(limits, Figures(), Findings(report))
    history.apply(ev.Issued(0, tuple(prompts), 0))
    for group in accepted:
        size = limits.group_size
        history.apply(ev.Generated(group, 1, ("w",), 0, 0, size, 3 * size))
        history.apply(ev.Scored(group, 1, 1, None))
    history.apply(ev.Trained(1, tuple(batch), 1))
    return report


@pytest.mark.parametrize(
    ("rows", "batch", "rule"),
    [
        (0, [0, 1], None),
        (0, [0, 2], Rule.WRONG_BATCH),
        (4, [0, 2], Rule.WRONG_BATCH),  # rows for two of the four groups of a batch
        (4, [0, 1], None),
    ],
)
def test_a_batch_with_more_than_the_share_of_an_environment_is_wrong(
    tmp_path: Path, rows: int, batch: list[int], rule: Rule | None
) -> None:
    rollouts = {"group_size": 2, "groups_per_step": 4 if rows else 2}
    environments = {"a": {"weight": 1}, "b": {"weight": 3 if rows else 1}}
    limits = limits_of(tmp_path, environments, rollouts=rollouts, batches={"rows": rows})
    violation = audited(limits, ["a/0", "b/0", "a/1"], [0, 1, 2], batch).violation
    assert (violation.rule if violation else None) == rule
    assert rule is None or (violation and "expected {'a': 1, 'b'" in violation.message)


@pytest.mark.parametrize(
    ("accepted", "batch", "lost"),
    [
        ([2, 3], [2, 3], None),
        ([2, 3, 0], [2, 3], None),  # accepted while the batch was made
        ([3, 4, 0], [3, 4], 2),  # the third that was passed over, of two
    ],
)
def test_a_look_ahead_passes_over_as_many_groups_as_it_says(
    tmp_path: Path, accepted: list[int], batch: list[int], lost: int | None
) -> None:
    limits = limits_of(tmp_path, batches={"look_ahead": 2})
    violation = audited(limits, list("abcde"), accepted, batch).violation
    found = (violation.rule, violation.group) if violation else None
    assert found == (None if lost is None else (Rule.LOST_GROUP, lost))


def test_a_null_of_an_environment_is_the_value_of_the_run(tmp_path: Path) -> None:
    own = {"environment": None, "rewards": None, "rollouts": {"max_new_tokens": None}}
    environment = {"name": "calculator"}
    limits = limits_of(tmp_path, {"a": own, "b": {}}, environment=environment)
    assert limits.reward_weights == {"a": (), "b": ()}  # it gives rewards as well
    assert limits == limits_of(tmp_path, {"a": {}, "b": {}}, environment=environment)
