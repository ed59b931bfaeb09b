"""Code that uses up the machine. Every limit here is small: a test that fails must not hurt."""

import signal

from sandbox_driver import Driver

from rlax_plugin.reward.sandbox.code_limits import MIB

# Harmless, and the first to fail if the limit of processes were not there.
COUNT = """
import os, time
made = 0
try:
    for _ in range(30):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except BlockingIOError:
    print(made)
"""
FILL = """
held = []
for _ in range(100):
    held.append(bytearray(8 << 20))
print("all of it")
"""
FILL_TOGETHER = """
import os, time
for _ in range(3):
    os.fork()
held = []
for _ in range(16):
    held.append(bytearray(4 << 20))
    time.sleep(0.005)
time.sleep(2)
print("all of it")
"""


def test_the_number_of_processes_is_limited(driver: Driver) -> None:
    ended = driver.run(COUNT)
    assert (ended.why, ended.stdout) == ("exited", b"15\n"), ended  # and itself is the sixteenth
    # What it left asleep is gone, and does not count.
    assert driver.run(COUNT).stdout == b"15\n"
    assert len(driver.processes()) == 2


def test_one_process_that_fills_the_memory_gets_a_memory_error(driver: Driver) -> None:
    ended = driver.run(FILL)
    assert (ended.why, ended.code, ended.stdout) == ("exited", 1, b"")
    assert b"MemoryError" in ended.stderr


def test_processes_that_fill_the_memory_together_are_killed(driver: Driver) -> None:
    # Eight of 64 MB each. Killed are some of them, or all, of which the first one may be none.
    ended = driver.run(FILL_TOGETHER)
    assert ended.stdout.count(b"all of it") < 8 and ended.why in ("memory", "exited"), ended
    assert driver.run("print(2)").stdout == b"2\n"


def test_an_endless_loop_ends(driver: Driver) -> None:
    ended = driver.run("print('begun', flush=True)\nwhile True: pass", wall_s=3.0)
    assert (ended.why, ended.stdout) == ("time", b"begun\n")
    ended = driver.run("while True: pass", cpu_s=1, wall_s=60)
    assert (ended.why, ended.code) == ("time", -signal.SIGXCPU), ended


def test_code_that_ignores_all_signals_ends(driver: Driver) -> None:
    code = (
        "import signal, time\n"
        "for number in range(1, 32):\n"
        "    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)\n"
        "while True:\n"
        "    try: time.sleep(9)\n"
        "    except BaseException: pass"
    )
    assert driver.run(code, wall_s=0.5).why == "time"


def test_a_flood_of_output_is_cut(driver: Driver) -> None:
    flood = "import sys\nwhile True: sys.stdout.write('flood' * 1000)"
    ended = driver.run(flood)
    assert len(ended.stdout) == MIB
    assert (ended.why, ended.code) == ("output", 1), ended.stderr
    assert b"File too large" in ended.stderr
    ended = driver.run(flood.replace("stdout", "stderr"))
    assert (ended.why, len(ended.stderr)) == ("output", MIB)


def test_the_files_of_a_piece_are_limited(driver: Driver) -> None:
    ended = driver.run(
        "import os\n"
        "written = 0\n"
        "try:\n"
        "    for number in range(100):\n"
        "        with open(f'/tmp/{number}', 'wb') as file: file.write(bytes(1 << 20))\n"
        "        written += 1\n"
        "except OSError as error: print(written, error.strerror)\n"
    )
    assert ended.stdout == b"16 No space left on device\n", ended
    ended = driver.run(
        "try:\n"
        "    with open('/tmp/large', 'wb') as file: file.write(bytes(2 << 20))\n"
        "except OSError as error: print(error.strerror)\n"
        "names = 0\n"
        "try:\n"
        "    while names < 5000:\n"
        "        open(f'/tmp/name{names}', 'w').close()\n"
        "        names += 1\n"
        "except OSError as error: print(names < 1100, error.strerror)\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(open('/dev/null'))\n"
        "except OSError as error: print(len(held) <= 64, error.strerror)\n"
    )
    assert ended.stdout.decode().splitlines() == [
        "File too large",
        "True No space left on device",
        "True Too many open files",
    ]
