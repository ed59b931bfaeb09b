"""``rlax explain`` of an objective: one preset, its example, its plug-ins, and what it rejects."""

import re
from pathlib import Path

import pytest
from installs import install, on_path, write
from objective_harness import PRESETS
from typer.testing import CliRunner

from rlax_plugin.tools.cli import app


def rlax(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def rejected(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 2
    return result.output


def example(output: str) -> list[list[str]]:
    """Numbers of the worked example, a row per token, the first two columns left out."""
    lines = output.split("Worked example")[1].split("loss")[0].splitlines()[2:]
    return [line.split()[-5:] for line in lines if line.strip()]


def test_grpo_is_worked_through() -> None:
    output = rlax("grpo")
    assert "https://arxiv.org/abs/2402.03300" in output
    assert re.search(r"high +0\.2 +ratios above 1 \+ high are clipped; default 0\.2", output)
    assert re.search(r"verl .*its dual clip is always on", output)
    # A = +-0.5 / std([1, 0, 0, 1], ddof 1) = +-0.8660; samples of 3, 2, 4 and 1 tokens.
    rows = example(output)
    assert len(rows) == 10
    assert rows[0] == ["1.1", "1.1000", "0.8660", "0.0833", "-0.0794"]  # 0.8660 * 1.1 / 12
    assert rows[1] == ["1.3", "1.3000", "0.8660", "0.0833", "0.0000"]  # clipped
    assert rows[4] == ["0.6", "0.6000", "-0.8660", "0.1250", "0.0000"]  # clipped
    assert rows[6] == ["0.95", "0.9500", "-0.8660", "0.0625", "0.0514"]  # 0.8660 * 0.95 / 16
    # The ratios, clipped to 1.2 where A > 0 and to 0.8 where A < 0, times A and weight.
    positive = (1.1 + 1.2 + 0.7) / 12 + 1.2 / 4
    total = 0.8660254 * (positive - (1.0 + 0.8) / 8 - (1.5 + 0.95 + 1.05 + 0.9) / 16)
    assert float(re.search(r"loss (\S+),", output)[1]) == pytest.approx(-total, rel=1e-4)


def test_the_old_policy_of_a_proximal_preset_is_half_way() -> None:
    rows = example(rlax("decoupled_ppo"))
    assert rows[1][:2] == ["1.3", "1.1402"]  # sqrt(1.3)


@pytest.mark.parametrize(
    "name", [*PRESETS[:3], *(pytest.param(name, marks=pytest.mark.long) for name in PRESETS[3:])]
)
def test_every_preset_can_be_explained(name: str) -> None:
    output = rlax(name)
    assert "Conventions" in output and "In other libraries" in output and len(example(output)) == 10


def test_keys_below_the_objective_can_be_set() -> None:
    clipped = rlax("grpo", "rlax.objective.grad_1={name: clipped_ratio, high: 0.5}")
    assert example(clipped)[1][-1] == "-0.0938"  # 0.8660 * 1.3 / 12: no longer clipped
    assert re.search(r"high +0\.5 ", clipped)
    assert "reference_kl_k3" in rlax("grpo", "rlax.objective.kl.coefficient=0.1")


PRESET = """
    from rlax_plugin.api import Choice, Extension, NoOptions, hookimpl
    from rlax_plugin.training.objective.presets import Preset

    @hookimpl
    def rlax_register_objective():
        slots = {"aggregation": "sequence_mean", "advantage": "group_normalised", "grad_1": "te_up"}
        preset = Preset(title="A stranger's", **{k: Choice(name=v) for k, v in slots.items()})
        return {"te_preset": Extension(NoOptions, lambda config, context: preset)}
"""
TERM = """
    from typing import ClassVar

    from rlax_plugin.api import Extension, Section, hookimpl

    class Up(Section):
        ratio: ClassVar[str] = "policy/old"

        def __call__(self, inputs):
            return 2 * inputs.ratio_bt

    @hookimpl
    def rlax_register_gradient_term():
        return {"te_up": Extension(Up, lambda config, context: config)}
"""


def test_installed_plugins_are_found_by_what_they_offer(tmp_path: Path) -> None:
    install(tmp_path, "te_presets", PRESET)
    install(tmp_path, "te_terms", TERM)
    with on_path(tmp_path):
        output = rlax("te_preset")
        install(tmp_path, "te_others", TERM)
        with on_path(tmp_path / "."):  # another path: what is installed is looked up again
            both = rejected("te_preset")
    assert "te_preset  A stranger's" in output
    assert example(output)[0] == ["1.1", "1.1000", "0.8660", "0.0833", "-0.1588"]  # twice grpo's
    assert "grad_1.name = 'te_up': several plug-ins offer this gradient term" in both
    assert "te_others:te_up" in both and "te_terms:te_up" in both


def test_the_plugins_of_a_config_are_loaded_and_its_own_objective_is_explained(tmp_path) -> None:
    write(tmp_path, "te_listed", PRESET + TERM)
    config = tmp_path / "run.yml"
    config.write_text(
        (Path(__file__).parents[3] / "configs/testing.yml")
        .read_text()
        .replace(
            "plugins: [",
            "objective: {preset: te_preset, entropy_coefficient: 0.25}\n  plugins: [te_listed, ",
        )
    )
    with on_path(tmp_path):
        assert "no key, part, preset or metric has this name" in rejected("te_preset")
        named = rlax("te_preset", str(config))
        assert "te_preset  A stranger's" in named and named == rlax(
            "te_preset", "--plugin", "te_listed"
        )
        assert "GRPO" in rlax("grpo", str(config))
        assert "gradient term te_up" in rlax("te_up", str(config))
        own = rlax(str(config))
        assert "te_preset  A stranger's" in own and re.search(r"entropy_coefficient +0.25", own)
        assert re.search(r"entropy_coefficient +0.25", named) is None
    assert "must be a config (.yml) or KEY=VALUE" in rejected("grpo", "run.toml")


def test_what_is_wrong_is_said() -> None:
    assert "'grpo'" in rejected("grop")
    assert "needs a preset, which wandb is not" in rejected("wandb", "rlax.objective.epochs=2")
    assert "must be a key below rlax.objective." in rejected("grpo", "rlax.seed=1")
    assert "unknown key; did you mean 'epochs'" in rejected("grpo", "rlax.objective.epoch=2")
    assert "no plug-in or module of this name" in rejected("grpo", "--plugin", "no_such")
