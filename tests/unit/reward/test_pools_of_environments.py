"""The rewards of several environments: errors name the keys of the one that has the sample."""

import asyncio
from functools import partial
from pathlib import Path

import numpy as np

from rlax_plugin.base.types import Prompt, Unscored
from rlax_plugin.config.loading import resolved
from rlax_plugin.reward.pool import RewardPool
from rlax_plugin.testing import make_episode

LATE = """
import time


def late(completion):
    time.sleep(60)
"""


def test_a_late_reward_names_the_deadline_of_its_environment(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    source = {"prompt_source": {"name": "numbers"}}
    late = {"rewards": [{"function": "late.py:late"}], "deadlines": {"reward_s": 0.5}}
    environments = {"math": source, "tools": {**source, **late}}
    content = {"rewards": [{"name": "even"}], "environments": environments}
    section = resolved({"rlax": {**content, "plugins": ["rlax_plugin.testing"]}}).section

    async def scored() -> object:
        pool = RewardPool(
            section.of_environment("tools"),
            tmp_path,
            key=section.key_of("tools", "rewards"),
            key_of=partial(section.key_of, "tools"),
            functions={"late.py": str(tmp_path / "late.py")},
        )
        await pool.start()
        try:
            prompt = Prompt("tools/0", np.array([1], np.int32), "1", "1")
            (score,) = await pool.score(prompt, [make_episode()])
            return score
        finally:
            await pool.close()

    found = asyncio.run(scored())
    assert isinstance(found, Unscored)
    assert "rlax.environments.tools.deadlines.reward_s" in found.reason
    assert "rlax.environments.tools.rewards.0" in found.reason
