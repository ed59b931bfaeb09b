"""The engine rast without a device: the runs that it accepts, and the strength it verifies at."""

from pathlib import Path

import numpy as np
import pytest
import rlax_rast
from rlax_rast import RastConfig

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import TensorSpec
from rlax_plugin.config.loading import of_yaml
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.rollout.batching.slots_engine import SlotsEngine
from rlax_plugin.testing import make_version
from rlax_plugin.weights.kept_versions import record_versions, versions_to_json

SECTION = "rlax: {prompt_source: {name: none}, rewards: [{name: none}], rollouts: {%s}}"


@pytest.fixture
def found(tmp_path: Path):
    """Looks for two runs' versions as a worker of a run with vocab_size 32 does."""

    def find(after: int = 1, before: int = 2, vocabulary: int = 32, rollouts: str = ""):
        for name, fingerprint in (("after", after), ("before", before)):
            files = RunFiles(tmp_path / name)
            text = f"vocab_size: {vocabulary}\n{SECTION % rollouts}"
            files.put("config.yml", text.encode())
            files.put("weights/0/bytes", b"")
            tensors = {"w": TensorSpec((2,), "float32", fingerprint)}
            version = make_version(0, files.location("weights/0"), tensors)
            record_versions(files, versions_to_json([version]))
        own = of_yaml(f"vocab_size: 32\n{SECTION % ''}".encode(), "config.yml")
        names = {name: f"{tmp_path}/{name}@0" for name in ("after", "before")}
        context = BuildContext.outside_run(own.section, own)
        return rlax_rast._smaller(RastConfig(**names), context)

    return find


def test_lengths_may_differ(found) -> None:
    assert list(found(rollouts="max_prompt_tokens: 7, max_new_tokens: 9")) == ["after", "before"]


def test_equal_weights_are_refused(found) -> None:
    with pytest.raises(ConfigError, match=r"engine\.before = .*before@0': has the weights of "):
        found(before=1)


def test_another_vocabulary_is_refused(found) -> None:
    with pytest.raises(ConfigError, match=r"engine\.after = .*: has vocab_size 64, and must have"):
        found(vocabulary=64)


async def test_decoding_is_verified_with_the_smaller_models(monkeypatch) -> None:
    engine = object.__new__(rlax_rast.RastEngine)
    engine.config = RastConfig(after="a@0", before="b@0", strength=100)
    strengths = []

    async def called(self, *arguments) -> None:
        strengths.append(arguments[-1].arrays["strength"])

    for name in ("decode_greedy", "use"):
        monkeypatch.setattr(SlotsEngine, name, called)
    loaded = Loaded(0, {}, None)
    await engine.decode_greedy(np.zeros(2, np.int32), 1, loaded)
    await engine.use(loaded)
    assert strengths == [1, 100]
