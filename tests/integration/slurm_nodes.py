"""A SLURM cluster of three nodes on this machine: its own munged, slurmctld and a slurmd for each.

A node is a slurmd, which says that it has four cores; all share the machine's files and cores.
"""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from runs import free_port
from waiting import wait_until

NODES = ("n1", "n2", "n3")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_PATH = f"{os.environ['PATH']}:/usr/sbin"

needs_slurm = pytest.mark.skipif(
    not all(shutil.which(program, path=_PATH) for program in PROGRAMS),
    reason="SLURM is not installed (in Debian: munge and slurm-wlm)",
)

_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait_s}
ReturnToService=2
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/%n.pid
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
_KILL_WAIT_S = 60  # a loaded machine needs it for what ends within a second elsewhere


class SlurmNodes:
    """The cluster, by the commands of its users."""

    def __init__(self, base: Path):
        self.environment = os.environ | {"PATH": _PATH, "SLURM_CONF": str(base / "slurm.conf")}

    def call(self, *command: str, environment: Mapping[str, str] | None = None, **options) -> str:
        """Runs a command, and returns what it prints."""
        env = self.environment | dict(environment or {})
        done = subprocess.run(
            command, env=env, text=True, capture_output=True, timeout=60, check=False, **options
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What SLURM says of a job."""
        said = self.call("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def jobs(self) -> str:
        """All jobs that wait or run."""
        return self.call("squeue", "--noheader", "--format=%i %j %T %r")


@contextmanager
def slurm_nodes(base: Path) -> Iterator[SlurmNodes]:
    """Brings up a cluster in a directory of a short name, and ends it with all its jobs."""
    host, munge = socket.gethostname(), base / "munge"
    for directory in (munge, base / "state", *(base / node for node in NODES)):
        directory.mkdir(mode=0o700)
    (munge / "key").write_bytes(secrets.token_bytes(1024))
    (munge / "key").chmod(0o600)
    lines = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4"
        for node in NODES
    ]
    conf = _CONF.format(
        host=host, port=free_port(), user=getpass.getuser(), base=base, kill_wait_s=_KILL_WAIT_S
    )
    head, _, partitions = conf.partition("PartitionName")
    (base / "slurm.conf").write_text(f"{head}{'\n'.join(lines)}\nPartitionName{partitions}")
    cluster = SlurmNodes(base)
    munged = ["munged", "--force", "--foreground", f"--key-file={munge}/key"]
    munged += [f"--{name}={munge}/{name.partition('-')[0]}" for name in ("socket", "pid-file")]
    munged += [f"--{name}={munge}/{name}" for name in ("seed-file", "log-file")]
    commands = [munged, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    with ExitStack() as ends:
        for command in commands:
            log = ends.enter_context((base / f"{'-'.join(command[:1])}.log").open("ab"))
            process = subprocess.Popen(
                command, env=cluster.environment, stdout=log, stderr=log, start_new_session=True
            )
            ends.callback(_end, process)
            if command is munged:
                wait_until((munge / "socket").exists, "munged")
        idle = ["sinfo", "--noheader", "--format=%T %D", "--partition=main"]
        wait_until(lambda: _succeeds(cluster, idle) == f"idle {len(NODES)}", "the nodes")
        try:
            yield cluster
        finally:
            cluster.call("scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}")
            cluster.call("scancel", f"--user={getpass.getuser()}")
            wait_until(lambda: not cluster.jobs(), "the end of all jobs", limit_s=120)


def _succeeds(cluster: SlurmNodes, command: list[str]) -> str:
    with suppress(AssertionError):  # slurmctld does not answer so far
        return cluster.call(*command)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
