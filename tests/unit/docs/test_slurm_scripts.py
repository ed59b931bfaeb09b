"""The scripts of ``configs/slurm``, with programs that only note how they are called.

``tests/integration/test_slurm_runs.py`` runs them on SLURM, where it is installed.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from documents import ROOT

from rlax_plugin.config import Deadlines
from rlax_plugin.config.loading import resolve
from rlax_plugin.run.start.places import Places
from rlax_plugin.tools.cli import app

SCRIPTS = ROOT / "configs/slurm"
CONFIG = str(ROOT / "configs/demo.yml")
GROUP: Any = typer.main.get_command(app)
# srun runs its command as each of its tasks; every other program notes its arguments.
SRUN = """
for word; do
  case $word in
    --ntasks=*) export SLURM_NTASKS=${word#*=} ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
for ((i = 0; i < ${SLURM_NTASKS:-1}; i++)); do
  SLURM_PROCID=$i "$@"
  ended=$?
  [ $ended -le ${highest:-0} ] || highest=$ended
done
exit ${highest:-0}
"""
NOTE = """
{ printf '%s\\0' "${0##*/}" "$@"; echo; } >> "$CALLS"
case ${0##*/}-$1 in
  rlax-certs) mkdir -p "$3" && touch "$3"/{secrets,worker-token,host-token}.json ;;
  rlax-train | rlax-serve)
    statuses=($STATUS)
    exit "${statuses[${SLURM_PROCID:-0}]:-${statuses[0]}}"
    ;;
  squeue-*) case $* in *--format=%T*) echo "$STATE_OF_JOB" ;; *) echo "$RUN_OF_WORKER" ;; esac ;;
esac
"""


def submitted(
    base: Path,
    script: str,
    *words: str,
    status: int | str = 0,
    state: str = "RUNNING",
    **settings: str,
) -> tuple[int, list[list[str]]]:
    """Runs a script as a job; returns its status, and the calls of other programs in order.

    Args:
      status: that of ``rlax``; or those of the hosts, with spaces between them.
    """
    (base / "bin").mkdir(parents=True)
    for program in ("srun", "rlax", "sbatch", "scancel", "squeue", "scontrol"):
        path = base / "bin" / program
        path.write_text(f"#!/bin/bash\n{SRUN if program == 'srun' else NOTE}")
        path.chmod(0o755)
    noted = base / "calls"
    noted.touch()
    environment = {
        "PATH": f"{base / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(noted),
        "STATUS": str(status),
        "STATE_OF_JOB": state,
        "RUN_OF_WORKER": "7 RUNNING",
        "SHARED": str(base / "shared"),
        "STATE": str(base / "state"),
        "SLURM_JOB_NAME": "mine",
        "SLURM_JOB_ID": "7",
        "SECONDS": "60",  # bash counts on from it
        **settings,
    }
    done = subprocess.run(
        ["bash", str(SCRIPTS / script), *words], env=environment, capture_output=True, timeout=60
    )
    lines = noted.read_text().splitlines()
    return done.returncode, [line.rstrip("\0").split("\0") for line in lines]


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of a command line, as the command would get them."""
    context = GROUP.make_context("rlax", list(words))
    name, command, rest = GROUP.resolve_command(context, list(words))
    return command.make_context(name, rest, parent=context).params


@pytest.mark.parametrize("hosts", [1, 2])
def test_each_training_process_is_the_host_of_its_number(tmp_path: Path, hosts: int) -> None:
    settings = {"HOSTS": str(hosts), "SLURM_NNODES": str(hosts), "MORE": "3"}
    status, calls = submitted(tmp_path, "run.sh", CONFIG, "steps=3", **settings)
    assert status == 0
    trains = [parsed(call[1:]) for call in calls if call[:2] == ["rlax", "train"]]
    assert len(trains) == hosts
    for index, train in enumerate(trains):
        options = (train[name] for name in ("hosts", "host", "coordinator", "controller"))
        place = Places(*options, token_file=train["token_file"]).place()
        if hosts == 1:
            assert place is None and train["hosts"] is None
        else:
            assert place is not None and (place.index, place.count) == (index, 2)
        config = resolve(train["config"], train["overrides"])
        section, run = config.section, config.maxtext
        assert (run["run_name"], run["steps"]) == ("mine", 3)
        assert section.launcher.name == "static" and section.network.port == 4711
        assert section.state_dir == f"{tmp_path}/state/mine"
    # The state directory of host 0 has the run's secrets, for its user alone.
    secrets = tmp_path / "state/mine/secrets.json"
    assert not secrets.stat().st_mode & 0o077
    (array,) = [call for call in calls if call[0] == "sbatch"]
    assert "--array=1-3" in array and "--job-name=mine-worker" in array
    script = array.index("configs/slurm/worker.sh")
    _, of_worker = submitted(tmp_path / "worker", "worker.sh", *array[script + 1 :])
    serve = parsed(of_worker[0][1:])
    assert serve["controller"].endswith(":4711") and array[-1] == "7"
    assert Path(serve["token_file"]).name == "worker-token.json"


def test_nodes_that_do_not_train_have_a_worker_each(tmp_path: Path) -> None:
    settings = {"HOSTS": "1", "SLURM_NNODES": "4"}
    _, calls = submitted(tmp_path, "run.sh", CONFIG, **settings)
    serves = [call for call in calls if call[:2] == ["rlax", "serve"]]
    assert len(serves) == 3 and not [call for call in calls if call[0] == "sbatch"]


def test_secrets_of_an_earlier_run_on_the_disk_are_replaced(tmp_path: Path) -> None:
    shared, state = tmp_path / "shared/mine-certs", tmp_path / "state/mine"
    places = {"SHARED": str(shared.parent), "STATE": str(state.parent)}
    for directory in (shared, state):
        directory.mkdir(parents=True)

    def left(number: int) -> str:
        settings = {"HOSTS": "1", "SLURM_NNODES": "1", **places}
        assert submitted(tmp_path / str(number), "run.sh", CONFIG, **settings)[0] == 0
        return (state / "secrets.json").read_text()

    (state / "secrets.json").write_text("of an earlier run")
    (shared / "secrets.json").write_text("first")
    assert left(0) == "first"
    (state / "secrets.json").write_text("rotated")
    assert left(1) == "rotated"
    (shared / "secrets.json").write_text("made again")
    assert left(2) == "made again"


@pytest.mark.parametrize(
    ("status", "state", "restarts", "again"),
    [
        (0, "RUNNING", 0, False),
        (1, "RUNNING", 0, False),
        (2, "RUNNING", 0, False),
        (130, "RUNNING", 0, True),
        (134, "RUNNING", 0, True),  # another host was lost
        (137, "RUNNING", 99, True),
        (137, "RUNNING", 100, False),
        (130, "COMPLETING", 0, False),  # cancelled, or put back by SLURM
    ],
)
def test_a_run_that_can_go_on_is_put_back(
    tmp_path: Path, status: int, state: str, restarts: int, again: bool
) -> None:
    settings = {"HOSTS": "1", "SLURM_NNODES": "1", "SLURM_RESTART_COUNT": str(restarts)}
    ended, calls = submitted(tmp_path, "run.sh", CONFIG, status=status, state=state, **settings)
    assert ended == status
    assert (["scontrol", "requeue", "7"] in calls) is again


@pytest.mark.parametrize(
    ("status", "restarts", "settings", "again"),
    [
        (0, 0, {}, True),  # it was told to stop, or has lost the run
        (1, 99, {}, True),
        (137, 100, {}, False),
        (2, 0, {}, False),  # its config is wrong
        (1, 0, {"RUN_OF_WORKER": ""}, False),  # SLURM has killed the run's own job
        (0, 0, {"STATE_OF_JOB": "COMPLETING"}, False),  # cancelled, or put back by SLURM
    ],
)
def test_a_worker_comes_back_as_long_as_its_run_is_there(
    tmp_path: Path, status: int, restarts: int, settings: dict[str, str], again: bool
) -> None:
    words = ("host:4711", "token.json", "6")
    settings = {"SLURM_RESTART_COUNT": str(restarts), **settings}
    ended, calls = submitted(tmp_path, "worker.sh", *words, status=status, **settings)
    assert ended == status and ["squeue", "--noheader", "--jobs=6"] in calls
    assert (["scontrol", "requeue", "7"] in calls) is again


@pytest.mark.parametrize(
    ("statuses", "ended", "again"),
    [
        ("2 134", 2, False),  # host 0 tells what is wrong, and JAX aborts the other
        ("1 134", 1, False),
        ("134 137", 137, True),  # host 1 was lost
        ("0 0", 0, False),
    ],
)
def test_a_run_over_hosts_ends_as_host_0_says(
    tmp_path: Path, statuses: str, ended: int, again: bool
) -> None:
    (tmp_path / "state/mine").mkdir(parents=True)
    (tmp_path / "state/mine/status").write_text("1\n")  # of an earlier time
    settings = {"HOSTS": "2", "SLURM_NNODES": "2"}
    found, calls = submitted(tmp_path, "run.sh", CONFIG, status=statuses, **settings)
    assert found == ended
    assert (["scontrol", "requeue", "7"] in calls) is again


def test_a_run_that_ends_at_once_is_not_put_back(tmp_path: Path) -> None:
    settings = {"HOSTS": "1", "SLURM_NNODES": "1", "SECONDS": "0"}
    status, calls = submitted(tmp_path, "run.sh", CONFIG, status=130, **settings)
    assert status == 130 and not [call for call in calls if call[0] == "scontrol"]


def test_more_hosts_than_nodes_are_refused_first(tmp_path: Path) -> None:
    settings = {"HOSTS": "3", "SLURM_NNODES": "2"}
    assert submitted(tmp_path, "run.sh", CONFIG, **settings) == (2, [])


def test_the_signal_comes_in_time() -> None:
    deadlines = Deadlines()
    trainer = deadlines.batch_s + 2 * deadlines.weights_s + 2 * deadlines.close_s + 70
    worker = deadlines.drain_s + 2 * deadlines.rpc_s + 10
    for script, seconds in (("run.sh", trainer), ("worker.sh", worker)):
        (signal,) = re.findall(
            r"^#SBATCH --signal=TERM@(\d+)$", (SCRIPTS / script).read_text(), re.M
        )
        assert float(signal) == seconds
