"""A run whose reward and filter are functions: edited, deleted and killed between its processes.

Only a new process imports the functions again.
"""

import json
import signal
from pathlib import Path

import yaml
from command_line import rlax
from processes import finished
from runs import CONFIG, DEADLINE_S, lines

REWARDS = """\
def short(completion, prompt):
    return 1.0 / (1 + len(completion))


def odd(completions, **columns):
    return [float(text[-1:] in tuple("13579")) if text else None for text in completions]
"""
FILTERS = """\
def mixed(rewards):
    return len(set(rewards)) > 1 or "all rewards are equal"
"""


def test_a_run_executes_its_copies(tmp_path: Path, monkeypatch) -> None:
    content = yaml.safe_load(Path(CONFIG).read_text())
    section = content["rlax"]
    section["rewards"] = [{"function": "own/r.py:short"}, {"function": "own/r.py:odd", "weight": 2}]
    section["curation"]["filters"] = [{"function": "f.py:mixed"}]
    section["evaluation"] = {"problems": 0}
    section["trainer"]["checkpoint_every"] = 1
    (tmp_path / "own").mkdir()
    rewards, filters = tmp_path / "own" / "r.py", tmp_path / "f.py"
    rewards.write_text(REWARDS)
    filters.write_text(FILTERS)
    (tmp_path / "c.yml").write_text(yaml.safe_dump(content | {"steps": 3}))
    run = tmp_path / "runs" / "testing"

    def train(kill_at: str = ""):
        return finished("train", "c.yml", cwd=tmp_path, kill_at=kill_at, timeout_s=DEADLINE_S)

    killed = train("commit-ended:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    record = json.loads((run / "functions" / "functions.json").read_text())
    assert record.keys() == {"own/r.py", "f.py"}
    assert yaml.safe_load((run / "config.yml").read_text())["rlax"]["functions"] == record

    monkeypatch.chdir(tmp_path)
    rewards.write_text(REWARDS.replace("1.0 / ", "2.0 / "))
    edited = rlax("train", "c.yml")
    assert edited.exit_code == 2
    said = " ".join(edited.stderr.split())
    assert "rlax.rewards.0.function = 'own/r.py:short': own/r.py was changed since this" in said
    assert "line 2 is the first that differs" in said and "another run_name" in said
    assert "Traceback" not in said

    rewards.unlink()
    filters.unlink()
    resumed = train()
    assert resumed.returncode == 0, resumed.stderr
    steps = lines(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        total = step["reward_part/short"] + 2 * step["reward_part/odd"]
        assert 0 < step["reward_part/short"] <= 1 and abs(step["reward/mean"] - total) < 1e-6

    # Commands that read records import nothing; score executes the run's copy.
    assert rlax("audit", "runs/testing").exit_code == 0
    (tmp_path / "one.jsonl").write_text('{"completion": "123", "prompt": "9", "reference": ""}\n')
    scored = rlax("score", "runs/testing/config.yml", "one.jsonl", "--json")
    assert scored.exit_code == 0, scored.stderr
    assert json.loads(scored.stdout)["samples"][0]["parts"] == [0.25, 1.0]

    gone = rlax("train", "c.yml", "run_name=new")
    assert gone.exit_code == 2 and not (tmp_path / "runs" / "new").exists()
    assert "rlax.rewards.0.function = 'own/r.py:short': there is no file" in gone.stderr
