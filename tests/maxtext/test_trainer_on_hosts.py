"""A trainer over two hosts computes what one device does, of packed rows and with a reference.

The hosts are processes with JAX's own coordinator, and the orders travel over real connections;
given batches stand for a controller (``trainer_on_hosts.py``).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import python_path
from runs import free_port

PROGRAM = Path(__file__).with_name("trainer_on_hosts.py")
HELPERS = Path(__file__).parents[1]
STEPS, FIGURES = 5, ("loss", "grad_norm")
DEADLINE_S = 300

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * DEADLINE_S)]


def train(directory, last_step=STEPS, *, hosts, devices):
    """Figures of host 0: name -> a value per step."""
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "address").unlink(missing_ok=True)
    paths = (HELPERS / "helpers", HELPERS / "integration", HELPERS / "maxtext")
    environment = os.environ | {"PYTHONPATH": python_path(*paths), "XLA_FLAGS": ""}
    port = free_port()
    processes = []
    for host in range(hosts):
        numbers = map(str, (host, hosts, devices, port, last_step))
        command = [sys.executable, str(PROGRAM), *numbers, str(directory)]
        with (directory / f"host-{host}.log").open("ab") as log:
            processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        statuses = [process.wait(DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(60)
    said = (directory / "host-0.log").read_text()[-2000:]
    assert statuses == [0] * hosts, said
    return json.loads((directory / "figures.json").read_text())


def assert_close(found, expected):
    """The first step is before any update."""
    for name in FIGURES:
        assert len(found[name]) == len(expected[name]) == STEPS
        gaps = np.abs(np.array(found[name]) - np.array(expected[name]))
        assert gaps[0] < 1e-6 and gaps.max() < 1e-4, (name, gaps)
    np.testing.assert_allclose(found["canary"], expected["canary"], rtol=0, atol=1e-4)


def test_hosts_train_as_one_device_does_and_their_number_may_change(tmp_path):
    expected = train(tmp_path / "one", hosts=1, devices=1)
    found = [
        train(tmp_path / "run", last, hosts=hosts, devices=8)
        for hosts, last in ((2, 2), (1, 4), (2, STEPS))
    ]
    assert [one["step"] for one in found] == [[1, 2], [3, 4], [5]]
    joined = {name: [value for one in found for value in one[name]] for name in FIGURES}
    assert np.abs(expected["loss"]).max() > 0.01, "there is something to learn"
    assert_close({**joined, "canary": found[-1]["canary"]}, expected)
