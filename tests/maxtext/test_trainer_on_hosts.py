"""A trainer over two hosts computes what one host does, for every way in which batches are made.

The hosts are processes with JAX's own coordinator, and the orders travel over real connections;
given batches stand for a controller (``trainer_on_hosts.py``).

``RLAX_TEST_HOSTS_VARIANTS`` names the ways: ``padded,packed,accumulated,proximal,reference`` are
all of them, and take half an hour of a core.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("trainer_on_hosts.py")
VARIANTS = os.environ.get("RLAX_TEST_HOSTS_VARIANTS", "packed,reference").split(",")
HELPERS = Path(__file__).parents[1]
DEADLINE_S = 800  # of five variants, each of which is compiled, beside other tests

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * DEADLINE_S)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def train(directory, *variants, hosts=2, devices=8):
    """Figures of host 0: variant -> name -> a value per step."""
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "address").unlink(missing_ok=True)
    paths = (HELPERS / "helpers", HELPERS / "integration", HELPERS / "maxtext")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "XLA_FLAGS": ""}
    port = free_port()
    processes = []
    for host in range(hosts):
        numbers = map(str, (host, hosts, devices, port))
        command = [sys.executable, str(PROGRAM), *numbers, str(directory), *variants]
        with (directory / f"host-{host}.log").open("ab") as log:
            processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        statuses = [process.wait(DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    said = (directory / "host-0.log").read_text()[-2000:]
    assert statuses == [0] * hosts, said
    return json.loads((directory / "figures.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Hosts x devices -> figures."""
    base = tmp_path_factory.mktemp("hosts")
    return {
        (hosts, devices): train(
            base / f"{hosts}x{devices}", *VARIANTS, hosts=hosts, devices=devices
        )
        for hosts, devices in ((2, 8), (1, 8), (1, 1))
    }


def assert_close(found, expected):
    """Figures of five steps, of which the first is before any update."""
    for name in ("loss", "grad_norm"):
        assert len(found[name]) == len(expected[name]) == 5
        gaps = np.abs(np.array(found[name]) - np.array(expected[name]))
        assert gaps[0] < 1e-6 and gaps.max() < 1e-4, (name, gaps)
    np.testing.assert_allclose(found["canary"], expected["canary"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("devices", [8, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_hosts_train_as_one_does(trained, variant, devices):
    expected = trained[1, devices][variant]
    assert np.abs(expected["loss"]).max() > 0.01, "there is something to learn"
    assert_close(trained[2, 8][variant], expected)


def test_a_run_goes_on_with_another_number_of_hosts(trained, tmp_path):
    variant, whole = "reference", trained[2, 8]["reference"]
    parts = [
        train(tmp_path / "run", f"{variant}:{last}", hosts=hosts)[variant]
        for hosts, last in ((2, 2), (1, 4), (2, 5))
    ]
    assert [part["step"] for part in parts] == [[1, 2], [3, 4], [5]]
    joined = {
        name: [value for part in parts for value in part[name]] for name in ("loss", "grad_norm")
    }
    assert_close({**joined, "canary": parts[-1]["canary"]}, whole)
