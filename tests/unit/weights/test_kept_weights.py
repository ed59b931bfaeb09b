"""The weight version that a part of a config names, as RUN@VERSION."""

import re
from pathlib import Path

import pytest
from weight_runs import write

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.testing import make_version
from rlax_plugin.weights.kept_versions import record_versions, versions_to_json
from rlax_plugin.weights.named import kept_weights

KEY = "rlax.rollouts.engine.after"


@pytest.fixture
def run(tmp_path: Path) -> str:
    files = RunFiles(tmp_path / "run")
    text = b"rlax: {prompt_source: {name: none}, rewards: [{name: none}]}"
    files.put("config.yml", text)
    paths = {number: write(files.location(f"weights/{number}")) for number in (3, 12)}
    versions = [make_version(number, path) for number, path in paths.items()]
    record_versions(files, versions_to_json(versions))
    return files.location()


def test_a_version_is_found_with_the_config_of_its_run(run: str) -> None:
    config, version = kept_weights(f"{run}@3", KEY)
    assert config.section.prompt_source.name == "none"
    assert (version.version, version.paths) == (3, (f"{run}/weights/3",))


@pytest.mark.parametrize(
    ("number", "error"),
    [
        ("", "must be RUN@VERSION; the run keeps 3, 12"),
        ("@7", "is no longer kept; available: 3, 12"),
        ("@\u00b2", "must be a run directory"),
        ("@" + "1" * 5000, "must be a run directory"),
        ("/checkpoints/1", "is a checkpoint, which only a trainer can read: give RUN@VERSION"),
    ],
)
def test_what_names_no_version_is_refused(run: str, number: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"^{KEY} = '.*: {error}"):
        kept_weights(run + number, KEY)


def test_what_is_damaged_is_named_with_the_key(run: str) -> None:
    said = f"^{KEY} = '{re.escape(run)}@3': "
    Path(run, "weights/3/bytes").unlink()
    with pytest.raises(ConfigError, match=f"{said}the weights of version 3 are gone"):
        kept_weights(f"{run}@3", KEY)
    Path(run, "versions.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"{said}.* is not an index of weight versions"):
        kept_weights(f"{run}@3", KEY)
