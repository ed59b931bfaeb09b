"""Workers that differ, and that know no more of the run than where its controller listens."""

import signal
import subprocess
from collections import Counter
from contextlib import ExitStack

import command_line
import processes
import pytest
from runs import DEADLINE_S, Run, free_port


@pytest.mark.ci
def test_workers_with_other_engines_and_slots_join_a_running_fleet_and_leave_it(tmp_path):
    """Each is a process in another directory, which has nothing but the controller's address."""
    run = Run(
        tmp_path,
        "steps=4000",
        "rlax.launcher={name: static}",
        "rlax.evaluation.problems=0",
        "rlax.trainer.learning_rate=1e-6",  # or the task would become too easy for its filter
        "rlax.rollouts.engine.token_s=0.01",
        f"rlax.network.port={(port := free_port())}",
    )
    (elsewhere := tmp_path / "elsewhere").mkdir()

    def generated() -> dict[str, int]:
        """Worker -> groups that trained."""
        groups = {(name, row["group"]) for row in run.trained() for name in row["workers"]}
        return Counter(name for name, _ in groups)

    with ExitStack() as stack:

        def worker(name: str, *local: str) -> subprocess.Popen[bytes]:
            serve = ("serve", "--controller", f"127.0.0.1:{port}", "--name", name, *local)
            log = tmp_path / f"{name}.log"
            return stack.enter_context(processes.process(log, *serve, cwd=elsewhere))

        plain = worker("plain")
        run.until(run.steps, "a step")
        half = worker("half", "rlax.rollouts.slots=8")
        # Its own option of the engine stands beside the run's, which is slow.
        unseeded = worker("unseeded", "rlax.rollouts.engine.seeded=false")
        blind = worker("blind", "rlax.rollouts.engine.logprobs=false")
        assert blind.wait(DEADLINE_S) == 2
        lacking = (tmp_path / "blind.log").read_text().splitlines()[-1]
        assert lacking.startswith("error: rlax.rollouts.engine = 'scripted': cannot generate for")

        names = {"plain", "half", "unseeded"}
        enough = lambda: names <= (g := generated()).keys() and min(g.values()) >= 3  # noqa: E731
        run.until(enough, f"three groups of each of {sorted(names)}")
        half.terminate()  # it drains: what it has begun is finished
        assert half.wait(DEADLINE_S) == 0
        steps = len(run.steps()) + 2
        run.until(lambda: len(run.steps()) >= steps, "two steps without it")
        run.process.send_signal(signal.SIGINT)
        status, out = run.end()
        assert status == 130, out
        assert plain.wait(DEADLINE_S) == unseeded.wait(DEADLINE_S) == 0
    assert generated().keys() == names and not list(elsewhere.iterdir())
    assert run.summary()["groups_reissued"] == 0
    assert out.count("worker blind was rejected: its engine gives no log-probs") == 1
    audited = command_line.rlax("audit", str(run.dir))
    assert audited.exit_code == 0, audited.output
