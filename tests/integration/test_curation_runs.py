"""The commands of docs/curation.md: measuring prompts, curating them, and training on the result.

The measurement is interrupted and killed on its way: its table must be that of an undisturbed one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from command_line import rlax
from documents import fences, read
from runs import CONFIG, DEADLINE_S, Run
from waiting import wait_until

from rlax_plugin.data.curation.pass_rate_files import read_table
from rlax_plugin.data.prompts.kept import kept_ids

MEASURE, COMPARE, CURATE, TRAIN = (
    shlex.split(line)[1:] for line in fences(read("curation.md"), "sh")[0].splitlines()
)
COUNT, SAMPLES = 40, int(MEASURE[MEASURE.index("--samples") + 1])
SLOW = ("rlax.rollouts.engine={name: scripted, latency_s: 0.4}", "rlax.rollouts.slots=12")


def measuring(directory: Path, out: str, *overrides: str) -> subprocess.Popen[str]:
    words = [out if word == "rates.parquet" else word for word in MEASURE]
    (temporary := directory / "tmp").mkdir(exist_ok=True)  # one that is killed leaves something
    return subprocess.Popen(
        [sys.executable, "-m", "rlax_plugin", *words, *overrides],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], number: int | None = None) -> str:
    """Its output; with a signal number, it is sent to all of its processes first."""
    if number is not None:
        os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=DEADLINE_S)
    return out


def until_part(process: subprocess.Popen[str], parts: Path, more_than: int) -> int:
    def more() -> int:
        time.sleep(0.02)
        going_on = process.poll() is None
        count = len(list(parts.glob("*.parquet")))
        assert going_on or count > more_than, ended(process)
        return count if count > more_than else 0

    return wait_until(more, f"more than {more_than} parts", limit_s=DEADLINE_S)


class Measured(NamedTuple):
    """Outputs of a measurement that was interrupted, then killed, then ended; and one in peace."""

    directory: Path
    interrupted: str
    resumed: str
    undisturbed: str


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    directory = tmp_path_factory.mktemp("curation")
    config = yaml.safe_load(Path(CONFIG).read_text())
    config["steps"] = 2
    config["rlax"]["prompt_source"]["count"] = COUNT
    config["rlax"]["launcher"]["workers"] = 1
    (directory / "run.yml").write_text(yaml.safe_dump(config))
    parts = directory / "rates.parquet.parts"
    processes = [measuring(directory, "rates.parquet", *SLOW)]
    try:
        count = until_part(processes[0], parts, 0)
        interrupted = ended(processes[0], signal.SIGINT)
        assert processes[0].returncode == 130, interrupted
        processes.append(measuring(directory, "rates.parquet", *SLOW))
        until_part(processes[1], parts, max(count, len(list(parts.glob("*.parquet")))))
        ended(processes[1], signal.SIGKILL)
        assert not (directory / "rates.parquet").exists()
        processes.append(measuring(directory, "rates.parquet", *SLOW))
        resumed = ended(processes[2])
        assert processes[2].returncode == 0, resumed
        processes.append(measuring(directory, "peace.parquet"))
        undisturbed = ended(processes[3])
        assert processes[3].returncode == 0, undisturbed
        yield Measured(directory, interrupted, resumed, undisturbed)
    finally:
        for process in processes:
            if process.poll() is None:
                ended(process, signal.SIGKILL)


@pytest.mark.long
def test_a_killed_measurement_ends_with_the_table_of_an_undisturbed_one(measured: Measured) -> None:
    one, other = (read_table(str(measured.directory / f"{n}.parquet")) for n in ("rates", "peace"))
    assert one.table.equals(other.table) and one.about == other.about
    assert one.table.num_rows == COUNT
    passed, failed = one.counts()
    assert (passed + failed == SAMPLES).all() and 0 < passed.sum() < COUNT * SAMPLES
    assert one.about.version == 0 and re.fullmatch("[0-9a-f]{8}", one.about.weights or "")
    assert not (measured.directory / "rates.parquet.parts").exists()


@pytest.mark.long
def test_an_interrupted_measurement_says_how_to_go_on(measured: Measured) -> None:
    said = " ".join(measured.interrupted.split())
    kept = re.search(
        rf"stopped; (\d+) of {COUNT} prompts are kept; the same command continues", said
    )
    assert kept and 0 < int(kept[1]) < COUNT
    done = re.search(rf"\({COUNT} prompts x {SAMPLES}, of which (\d+) are done", measured.resumed)
    assert done and int(kept[1]) < int(done[1]) < COUNT
    assert "never" in measured.undisturbed and "written to peace.parquet" in measured.undisturbed


@pytest.mark.long
def test_training_uses_the_kept_prompts_and_begins_with_their_pass_rates(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(measured.directory)
    for command in (COMPARE, CURATE):
        done = rlax(*command)
        assert done.exit_code == 0, done.output
    kept = set(kept_ids("kept.parquet").to_pylist())
    assert 4 < len(kept) < COUNT
    settings = (*TRAIN[2:], "rlax.evaluation.problems=0")
    run = Run(measured.directory, *settings, config=TRAIN[1])
    status, out = run.end()
    assert status == 0, out
    assert f"rlax.curation.only keeps {len(kept)} of {COUNT} prompts" in " ".join(out.split())
    rows = run.samples()
    assert {row["prompt_id"] for row in rows} <= kept
    rates = read_table("rates.parquet")
    passed, failed = rates.counts()
    of = dict(zip(rates.table.column("id").to_pylist(), passed / (passed + failed), strict=True))
    first: dict[str, float] = {}
    for row in rows:
        first.setdefault(row["prompt_id"], row["pass_rate_before"])
    assert len(first) >= 8
    # Until a prompt is asked again, its pass rate is the measured one.
    measured_first = [of[prompt_id] for prompt_id in first]
    np.testing.assert_allclose(list(first.values()), measured_first, atol=1e-6)

    # With another file these are other prompts.
    Path("kept.parquet").unlink()
    again = rlax("curate", "rates.parquet", "--keep", "0.1..0.6", "--out", "kept.parquet")
    assert again.exit_code == 0, again.output
    run = Run(measured.directory, *settings, "steps=3", config=TRAIN[1])
    status, out = run.end()
    said = " ".join(out.split())
    assert (
        status == 2 and "rlax.curation.only = 'kept.parquet': has other prompts than when" in said
    )
    assert json.loads((run.dir / "summary.json").read_text())["steps"] == 2
