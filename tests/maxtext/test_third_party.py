"""A stranger's package, written from docs/ alone, trains MaxText once pip has installed its wheel.

It lies below ``tests/third_party`` and is used from elsewhere: copied, built, installed and run in
directories of its own, beside an ``rlax-plugin`` that knows nothing of it. That it is small and
passes its own test is tested in ``tests/integration/test_third_party_environment.py``.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from strangers import installed, python

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests" / "third_party" / "rlax_variety"
STEPS, GROUP_SIZE = 3, 4
WEIGHT = 0.5  # of the stranger's reward

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return installed(tmp_path_factory.mktemp("stranger"), PACKAGE)


@pytest.fixture(scope="module")
def run(site, tmp_path_factory) -> Path:
    """The directory of three steps, started where nothing of the checkout lies."""
    directory = tmp_path_factory.mktemp("run")
    out = python(
        directory,
        *("rlax_plugin", "train", str(ROOT / "tests" / "configs" / "maxtext.yml")),
        f"tokenizer_path={ROOT / 'plugins' / 'rlax_arithmetic' / 'tokenizer_files'}",
        f"base_output_directory={directory}",
        f"steps={STEPS}",
        "rlax.plugins=[rlax_variety]",
        "rlax.curation.filters=[]",  # so that what is scored for a step is what it trains on
        f"rlax.rewards=[{{name: token_parity}}, {{name: variety, most: 2, weight: {WEIGHT}}}]",
        "rlax.objective={preset: gentle_rloo}",
        path=site,
    )
    assert f"step {STEPS}/{STEPS}" in out
    return directory / "maxtext"


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def batches(run: Path) -> list[list[dict[str, Any]]]:
    paths = sorted(run.glob("samples/*/*.parquet"))
    tables: list[pa.Table] = [pq.read_table(path) for path in paths]
    rows = [row for table in tables for row in table.to_pylist() if row["state"] == "trained"]
    return [list(batch) for _, batch in itertools.groupby(rows, key=lambda row: row["step"])]


def test_its_reward_is_scored_recorded_and_measured(run):
    steps = metrics(run)
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line, batch in zip(steps, batches(run), strict=True):
        assert len(batch) == 4 * GROUP_SIZE
        for row in batch:
            parity, variety = row["reward_parts"]  # as rlax.rewards lists them
            text = row["completion"]
            assert parity in (0.0, 1.0)
            assert variety == pytest.approx(2 * len(set(text)) / len(text), abs=1e-12)
            assert row["reward"] == pytest.approx(parity + WEIGHT * variety, abs=1e-12)
        means = [sum(row["reward_parts"][i] for row in batch) / len(batch) for i in (0, 1)]
        assert line["reward_part/token_parity"] == pytest.approx(means[0], abs=1e-9)
        assert line["reward_part/variety"] == pytest.approx(means[1], abs=1e-9)
        assert line["reward/mean"] == pytest.approx(means[0] + WEIGHT * means[1], abs=1e-9)


def test_its_preset_is_what_trains(run):
    for line, batch in zip(metrics(run), batches(run), strict=True):
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in batch:
            groups.setdefault(row["group"], []).append(row)
        for group in groups.values():  # leave_one_out, without a std
            total = sum(row["reward"] for row in group)
            for row in group:
                others = (total - row["reward"]) / (GROUP_SIZE - 1)
                assert row["advantage"] == pytest.approx(row["reward"] - others, abs=1e-9)

        # token_mean of A log pi, on-policy, where no weight is cut and no token vetoed. The DAPO of
        # the config has a ratio in the place of the log-prob, and a loss of -mean(A).
        tokens = sum(len(row["tokens"]) for row in batch)
        value = sum(row["advantage"] * sum(row["logprobs"]) for row in batch) / tokens
        assert abs(value) > 1e-4
        assert line["learning/loss"] == pytest.approx(-value, abs=1e-5)
        assert line["learning/total_weights"] == line["objective/tokens"] == tokens
        assert line["objective/truncated_fraction"] == line["objective/veto_masked_fraction"] == 0
        assert "objective/clip_fraction_high" not in line


def test_at_the_weights_that_generated_every_ratio_is_1(run):
    """The preset takes pi_old from the sampler and updates once per step."""
    for line in metrics(run):
        assert line["staleness/max"] == 1
        assert line["logprob_gap/tokens"] == line["objective/tokens"]
        assert line["logprob_gap/max"] < 1e-4
        assert line["objective/ratio"] == pytest.approx(1, abs=1e-5)
        assert line["objective/chi_squared"] == pytest.approx(0, abs=1e-4)
        assert line["objective/effective_sample_size"] == pytest.approx(1, abs=1e-6)


def test_the_weights_change_at_every_step(run):
    assert all(line["learning/grad_norm"] > 0.01 for line in metrics(run))

    segments = [json.loads(path.read_text()) for path in sorted(run.glob("journal/*/*.json"))]
    events = [event for segment in segments for event in segment["events"]]
    published = [event for event in events if event["event"] == "published"]
    assert [event["version"] for event in published] == [0, 1, 2, 3]
    assert len({event["digest"] for event in published}) == STEPS + 1

    kept = json.loads((run / "versions.json").read_text())["versions"]
    prints = {
        version["version"]: {
            name: spec["fingerprint"] for name, spec in version["parts"][0]["tensors"].items()
        }
        for version in kept
    }
    assert prints.keys() >= {STEPS - 1, STEPS}  # rlax.weights.keep is 2
    before, after = prints[STEPS - 1], prints[STEPS]
    assert before.keys() == after.keys() and len(after) > 10
    assert all(before[name] != after[name] for name in after)
