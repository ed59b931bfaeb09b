"""The commands of docs/curation.md: measuring prompts, curating them, and training on the result.

The measurement is a process that is killed on its way: its table must be that of an undisturbed
one.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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


def until_parts(process: subprocess.Popen[str], parts: Path) -> None:
    def some() -> bool:
        time.sleep(0.02)
        assert process.poll() is None
        return any(parts.glob("*.parquet"))

    wait_until(some, "the first parts", limit_s=DEADLINE_S)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a measurement that was killed and goes on, and of one in peace."""
    directory = tmp_path_factory.mktemp("curation")
    config = yaml.safe_load(Path(CONFIG).read_text())
    config["steps"] = 2
    config["rlax"]["prompt_source"]["count"] = COUNT
    config["rlax"]["launcher"]["workers"] = 1
    (directory / "run.yml").write_text(yaml.safe_dump(config))
    processes = [measuring(directory, "rates.parquet", *SLOW)]
    try:
        until_parts(processes[0], directory / "rates.parquet.parts")
        os.killpg(processes[0].pid, signal.SIGKILL)
        processes[0].communicate(timeout=DEADLINE_S)
        assert not (directory / "rates.parquet").exists()
        for out, slow in (("rates.parquet", SLOW), ("peace.parquet", ())):
            processes.append(measuring(directory, out, *slow))
            said, _ = processes[-1].communicate(timeout=DEADLINE_S)
            assert processes[-1].returncode == 0, said
            done = re.search(r"of which (\d+) are done", said)
            assert bool(done and 0 < int(done[1]) < COUNT) == (out == "rates.parquet"), said
        yield directory
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate(timeout=DEADLINE_S)


@pytest.mark.long
def test_a_killed_measurement_ends_with_the_table_of_an_undisturbed_one(measured: Path) -> None:
    one, other = (read_table(str(measured / f"{name}.parquet")) for name in ("rates", "peace"))
    assert one.table.equals(other.table) and one.about == other.about
    assert one.table.num_rows == COUNT
    passed, failed = one.counts()
    assert (passed + failed == SAMPLES).all() and 0 < passed.sum() < COUNT * SAMPLES
    assert one.about.version == 0 and re.fullmatch("[0-9a-f]{8}", one.about.weights or "")
    assert not (measured / "rates.parquet.parts").exists()


@pytest.mark.long
def test_training_uses_the_kept_prompts_and_begins_with_their_pass_rates(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(measured)
    for command in (COMPARE, CURATE):
        done = rlax(*command)
        assert done.exit_code == 0, done.output
    kept = set(kept_ids("kept.parquet").to_pylist())
    assert 4 < len(kept) < COUNT
    settings = (*TRAIN[2:], "rlax.evaluation.problems=0")
    run = Run(measured, *settings, config=TRAIN[1])
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
