"""A run that begins with pass rates that were measured before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flow_harness import Source
from sections import section_with

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.curation.pass_rate_files import About, measured, write_table
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.rollout.fleet.requests import sampling_params
from rlax_plugin.run.start.preflight import check_places
from rlax_plugin.run.start.prior import about_rates, first_rates

PROMPTS = Source().prompts("train")


def section(path: object, **prior: Any) -> RlaxSection:
    curation = {"prior": {"path": str(path), **prior}, "prior_samples": 4, "prior_rate": 0.25}
    return section_with(curation=curation)


def about(config: RlaxSection) -> About:
    return about_rates(config, sampling_params(config, Source()), "runs/next", None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of two of the prompts, and of one that the run has not."""
    columns = {"id": ["p2", "other", "p5"], "passed": [6.0, 9.0, 0.0], "failed": [2.0, 0.0, 8.0]}
    write_table(str(tmp_path / "prior.parquet"), measured(columns, about(section(""))))
    return tmp_path / "prior.parquet"


def begun(config: RlaxSection, files: RunFiles) -> tuple[PassRateTable, list[str]]:
    notes: list[str] = []
    return first_rates(config, PROMPTS, about(config), files, notes.append), notes


def test_a_prior_counts_with_its_weight(path: Path, tmp_path: Path) -> None:
    table, notes = begun(section(path, weight=0.5), RunFiles(tmp_path / "run"))
    alpha, beta = table.posterior([2, 5, 0])
    assert alpha.tolist() == [1 + 3, 1, 1] and beta.tolist() == [3 + 1, 3 + 4, 3]
    assert np.flatnonzero(table.measured()).tolist() == [2, 5]
    assert notes == [
        f"{path}: pass rates of 2 of the 10 prompts; 1 of its rows are of other prompts"
    ]


def test_a_resumed_run_does_not_need_the_file(path: Path, tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run")
    first, _ = begun(section(path), files)
    files.put("journal/00000/00000001.json", b"{}")  # it has results
    path.unlink()
    again, notes = begun(section(path), files)
    assert not notes
    for one, other in zip(again.posterior(), first.posterior(), strict=True):
        assert one.tolist() == other.tolist()
    where = {"base_output_directory": str(tmp_path), "run_name": "run"}
    check_places(section(path), where)
    with pytest.raises(ConfigError, match="does not exist"):
        check_places(section(path), where | {"run_name": "new"})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rollouts": {"max_new_tokens": 3}}, "max_new_tokens 16 instead of 3"),
        ({"curation": {"pass_threshold": 0.75}}, "pass_threshold 0.5 instead of 0.75"),
    ],
)
def test_a_prior_that_was_measured_otherwise_is_refused(
    path: Path, tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    given = section(path).model_dump(mode="python")
    for name, changes in other.items():
        given[name] |= changes
    config = RlaxSection.model_validate(given)
    for refuses in (
        lambda: begun(config, RunFiles(tmp_path / "run")),
        lambda: check_places(config, {}),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            refuses()
        assert str(raised.value).startswith(f"rlax.curation.prior.path = '{path}': was measured")
        assert "rlax.curation.prior.any_sampling" in str(raised.value)
    given["curation"]["prior"]["any_sampling"] = True
    table, _ = begun(RlaxSection.model_validate(given), RunFiles(tmp_path / "run"))
    assert table.rate(2) == 0.75


def test_stop_ids_are_compared_when_the_prompts_are_known(path: Path, tmp_path: Path) -> None:
    config = section(path)
    check_places(config, {})
    other = about_rates(config, sampling_params(config, _Endless()), "runs/next", None)
    with pytest.raises(ConfigError, match=r"stop_ids \[1\] instead of \[2\]"):
        first_rates(config, PROMPTS, other, RunFiles(tmp_path / "run"), print)


class _Endless(Source):
    stop_ids = (2,)
