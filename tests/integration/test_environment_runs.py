"""A run with two environments is killed and resumed: it ends as if it had not been killed."""

import signal
from collections import Counter
from pathlib import Path

import pytest
import yaml
from processes import finished
from runs import CONFIG, DEADLINE_S
from test_episode_runs import computed

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

CALCULATOR = {"name": "calculator", "begin": "", "end": "", "result": "0", "after": "1"}
# Of one prompt source, whose ids would be the same; with ends of their own and shares of 3 to 1.
# They are not written in the order of their names.
ENVIRONMENTS = {
    "sums": {"weight": 3, "prompt_source": {"name": "numbers"}},
    "plays": {
        "prompt_source": {"name": "numbers"},
        "environment": {**CALCULATOR, "max_calls": 2},
        "episodes": {"max_tokens": 30},
        "objective": {"advantage": {"name": "leave_one_out"}},
    },
}
SETTINGS = (
    "steps=4",
    "rlax.deterministic=true",
    "rlax.trainer.checkpoint_every=2",
    "rlax.evaluation.problems=0",
    "rlax.rollouts.engine={name: scripted, latency_s: 0.1}",
)


def train(directory: Path, kill_at: str = "") -> RunFiles:
    directory.mkdir(exist_ok=True)
    config = yaml.safe_load(Path(CONFIG).read_text())
    del config["rlax"]["prompt_source"]
    config["rlax"]["environments"] = ENVIRONMENTS
    (directory / "two.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    command = ("train", "two.yml", *SETTINGS)
    done = finished(*command, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)
    assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stdout + done.stderr
    return RunFiles(directory / "runs/testing")


@pytest.mark.ci
def test_a_killed_run_with_two_environments_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "undisturbed")
    for kill_at in ("ledger-written:9", "snapshot-written:1"):
        train(tmp_path / "killed", kill_at=kill_at)
    resumed = train(tmp_path / "killed")
    batches, _ = computed(resumed)
    assert computed(resumed) == computed(undisturbed)
    for step in range(1, 5):
        ids = {(row["group"], row["prompt_id"]) for row in batches if row["step"] == step}
        assert Counter(one.split("/")[0] for _, one in ids) == {"sums": 3, "plays": 1}
    assert {len(r["seeds"]) for r in batches if r["prompt_id"].startswith("plays/")} == {3}
    assert {len(r["seeds"]) for r in batches if r["prompt_id"].startswith("sums/")} == {1}
    report = audit(resumed)
    assert report.violation is None, report.violation
