"""MaxText's own keys: what cannot work is one message with its key, before a worker is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from maxtext_overrides.config import loading as rlax_config
from rlax_plugin.cli import app
from rlax_plugin.errors import ConfigError

MAXTEXT = str(Path(__file__).parents[1] / "configs/maxtext.yml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rate=.nan", "learning_rate = nan: must be a finite number"),
        ("learning_rate=.inf", "learning_rate = inf: must be a finite number"),
        ("adam_eps=-.inf", "adam_eps = -inf: must be a finite number"),
    ],
)
def test_no_number_of_maxtext_is_nan_or_infinite(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        rlax_config.load((MAXTEXT, override))
    assert str(error.value) == message


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize("key", ["load_parameters_path", "load_full_state_path"])
def test_weights_to_start_from_must_be_there(
    command: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [command, MAXTEXT, f"{key}={tmp_path}/missing"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 2
    assert result.stderr == f"error: {key} = '{tmp_path}/missing': does not exist\n"
    assert not list(tmp_path.iterdir())  # nothing was started


def test_check_refuses_what_the_whole_config_cannot_be() -> None:
    for override, key in (
        ("run_name=../x", "run_name"),
        ("rlax.rollouts.max_new_tokens=9", "max_target_length"),
        ("vocab_size=16", "vocab_size"),
    ):
        result = CliRunner().invoke(app, ["check", MAXTEXT, override], catch_exceptions=False)
        assert result.exit_code == 2 and result.stderr.startswith(f"error: {key} = ")
        assert result.stderr.count("\n") == 1
