"""The process that starts all hosts says which of them was lost, and ends the others in time.

The hosts are small programs here (fakes): what JAX does when a host is lost is theirs to imitate.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from waiting import wait_until

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.run.start import hosts
from rlax_plugin.run.start.follower import ENDED, log_file

HOST_S = 2.0
AT_MOST_S = 120.0  # a machine may stall; the programs that wait do so for twice as long
WAIT = "import time; print('working', flush=True); time.sleep(240)"
# What another host does once a host was hit.
AFTERWARDS = "import os, sys, time\nwhile not os.path.exists('hit'): time.sleep(.05)\n"
ABORTS = AFTERWARDS + "time.sleep(1); os.abort()"  # as JAX has it do
# Not before the end of the killed host was seen, whose number "hit" has then.
ABORTS_LATER = (
    f"{AFTERWARDS}while os.path.exists('/proc/' + open('hit').read()): time.sleep(.05)\n"
    "time.sleep(1); os.abort()"
)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs programs as hosts; returns status, loss, seconds, and what was printed.

    ``then`` is done to the hosts as soon as those that say so are working; the file "hit" gets what
    it returns. Hosts that a failed test leaves are killed.
    """
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer.log").write_text("step 4 of 9\n")
    started = {}

    def with_programs(*programs, then=lambda started: None):
        def start(_, index, state_dir):
            log = log_file(state_dir, index)
            with log.open("ab") as out:
                command = [sys.executable, "-c", programs[index]]
                process = subprocess.Popen(command, stdout=out, cwd=tmp_path)
            started[index] = process
            return hosts._Host(index, process, log)

        def works(index):
            if "working" not in programs[index]:
                return True
            log = log_file(tmp_path, index)
            works = log.exists() and "working" in log.read_text()
            return works or (index in started and started[index].poll() is not None)

        def hit():
            wait_until(lambda: all(works(index) for index in range(len(programs))), "all at work")
            (tmp_path / "hit").write_text(str(then(started) or ""))

        monkeypatch.setattr(hosts, "_start", start)
        hitting = threading.Thread(target=hit)
        hitting.start()
        began_s = time.monotonic()
        found = hosts.on_all_hosts(["train"], len(programs), HOST_S, tmp_path)
        hitting.join()
        assert all(process.poll() is not None for process in started.values())
        return *found, time.monotonic() - began_s, capfd.readouterr().err

    yield with_programs
    for process in started.values():
        process.kill()
        process.wait(60)


def test_all_hosts_succeed(run):
    assert run("pass", "pass")[:2] == (0, False)


@pytest.mark.parametrize("status", [1, 2, 130])
def test_the_status_is_that_of_host_0_whose_end_ends_the_others(run, status):
    follows = f"import sys, time; time.sleep(.5); sys.exit({ENDED})"
    found, lost, _, said = run(f"import sys; sys.exit({status})", follows)
    assert (found, lost, said) == (status, False, "")


def test_a_host_that_still_looks_for_host_0_ends_with_it(run):
    status, lost, took_s, said = run("import sys; sys.exit(2)", WAIT)
    assert (status, lost, said) == (2, False, "") and took_s < AT_MOST_S


def test_a_killed_host_is_named_with_the_end_of_its_log(run):
    status, lost, took_s, said = run(ABORTS_LATER, WAIT, then=lambda s: s[1].kill() or s[1].pid)
    assert (status, lost) == (1, True) and took_s < AT_MOST_S
    assert "host 1 was lost: process " in said and f"was ended by {signal.SIGKILL.name}" in said
    assert "host-1.log: working" in said and "host 0" not in said


def test_a_killed_host_0_is_named(run):
    status, lost, _, said = run(WAIT, ABORTS, then=lambda s: s[0].kill())
    assert (status, lost) == (1, True)
    assert "host 0 was lost" in said and "SIGKILL" in said and "trainer.log: step 4 of 9" in said
    assert "host 1" not in said


def test_a_host_that_is_told_to_end_before_it_can_catch_the_signal_is_lost(run):
    status, lost, took_s, said = run(
        ABORTS_LATER, WAIT, then=lambda s: s[1].terminate() or s[1].pid
    )
    assert (status, lost) == (1, True) and took_s < AT_MOST_S
    assert "host 1 was lost" in said and "SIGTERM" in said and "host 0" not in said


def test_a_host_that_cannot_start_is_named_with_its_message(run):
    fails = "import sys; print('error: host 0 has another config'); sys.exit(2)"
    status, lost, _, said = run(WAIT, fails)
    assert (status, lost) == (1, True)
    assert "host 1 was lost" in said and "ended with status 2" in said
    assert "host-1.log: error: host 0 has another config" in said


def test_a_host_that_hangs_is_killed_after_host_s(run):
    status, lost, took_s, said = run("import os; os.abort()", WAIT)
    assert (status, lost) == (1, True) and HOST_S < took_s < AT_MOST_S
    assert "host 1 was lost" in said and "did not end by itself and had to be killed" in said


def test_signals_are_passed_on_to_host_0_alone(run):
    stops = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(130)); {WAIT}"
    follows = AFTERWARDS + "time.sleep(1)"
    status, lost, _, said = run(stops, follows, then=lambda s: os.kill(os.getpid(), signal.SIGTERM))
    assert (status, lost, said) == (130, False, "")


@pytest.mark.parametrize("hardware", ["tpu", None])
def test_processes_of_one_machine_share_a_processor_only(hardware):
    with pytest.raises(ConfigError, match=r"hardware must be cpu.*--coordinator") as raised:
        hosts.check_processor({"hardware": hardware} if hardware else {}, 2)
    assert raised.value.key == "--hosts"
