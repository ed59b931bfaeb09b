"""``python_tests`` where a run has it: ``rlax check``, and the reward pool's own processes."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
import rlax_code
from command_line import rlax
from reward_pools import section, with_pool
from sections import section_with
from waiting import eventually

from rlax_plugin.api import BuildContext, ConfigError, Episode, Score, sandbox_layers
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.reward.sandbox.layers import Offer
from rlax_plugin.testing import make_prompt

TESTING = str(Path(__file__).parents[4] / "tests/configs/testing.yml")
LACKING = Offer({"seccomp": ""}, {"landlock": "no such call"})


def with_reward(**options: object) -> str:
    return f"rlax.rewards={json.dumps([{'name': 'even'}, {'name': 'python_tests', **options}])}"


@pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")
def test_check_names_the_layers() -> None:
    result = rlax("check", TESTING, "steps=1", with_reward(), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    said = document["words"]["rlax.rewards.1"]
    assert "landlock (version " in said["sandbox"] and "missing" not in said
    assert not [one for one in document["warnings"] if one["key"].startswith("rlax.rewards")]


def test_a_run_does_not_start_with_fewer_layers() -> None:
    with patch("rlax_code.sandbox_layers", return_value=LACKING):
        refused = rlax("check", TESTING, "--fast", with_reward())
        assert refused.exit_code == 2
        assert (
            "rlax.rewards.1.allow_weak = False: this machine lacks layers of the sandbox: "
            "landlock (no such call)" in refused.stderr
        )
        allowed = rlax("check", TESTING, "steps=1", with_reward(allow_weak=True), "--json")
    assert allowed.exit_code == 0, allowed.stderr
    document = json.loads(allowed.stdout)
    assert document["words"]["rlax.rewards.1"]["missing"] == "landlock: no such call"
    warnings = {one["key"]: one["text"] for one in document["warnings"]}
    assert "is true, and this machine lacks" in warnings["rlax.rewards.1.allow_weak"]


def test_of_several_the_one_that_is_wrong_is_named() -> None:
    choices = [{"name": "python_tests", "allow_weak": True}, {"name": "python_tests", "test_s": 3}]
    context = BuildContext(Path(), 0, section_with(rewards=choices))
    offered = rlax_code.rlax_register_reward()["python_tests"]
    with (
        patch("rlax_code.sandbox_layers", return_value=LACKING),
        pytest.raises(ConfigError, match=r"rlax\.rewards\.1\.allow_weak = False"),
    ):
        offered.check_start(offered.config_class(test_s=3), context)


def test_times_that_contradict_each_other_are_refused() -> None:
    late = rlax("check", TESTING, "--fast", with_reward(sample_s=60))
    assert late.exit_code == 2
    assert "rlax.rewards.1.sample_s = 60.0: must be below rlax.deadlines.reward_s" in late.stderr
    long = rlax("check", TESTING, "--fast", with_reward(test_s=9))
    assert "rlax.rewards.1.test_s = 9.0: must be at most sample_s" in long.stderr


@pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")
def test_a_pool_serves_whatever_the_code_does(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tests = {"tests": ["assert f(3) == 9"]}
    prompt = replace(make_prompt("square"), metadata=tests)
    texts = (
        "def f(x): return x * x",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)",
        "while True: pass",
        "print('x' * 10_000_000)",
        "def f(x): return 9",
    )
    config = section(
        plugins=[],
        rewards=[{"name": "python_tests", "test_s": 4.0, "memory_mib": 128}],
        reward_processes=1,
    )

    async def work(pool: RewardPool) -> None:
        episodes = [Episode(index, (), text) for index, text in enumerate(texts)]
        scores = await pool.score(prompt, episodes)
        assert all(isinstance(score, Score) for score in scores), scores
        totals = [score.total for score in scores if isinstance(score, Score)]
        assert totals == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
        # The reward process, and two for each of its two sandboxes, once all others have ended.
        found.extend(
            await eventually(lambda: now if len(now := started()) == 5 else None, "five processes")
        )

    def started() -> list[psutil.Process]:
        return [one for one in psutil.Process().children(recursive=True) if one not in others]

    found: list[psutil.Process] = []
    others = psutil.Process().children(recursive=True)  # of tests of the sandbox
    with_pool(config, work)
    assert len(found) == 5
    assert psutil.wait_procs(found, 60)[1] == []
