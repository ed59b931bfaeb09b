"""What the user sees."""

import io
import math

from rich.console import Console

from rlax_plugin.run.display.dashboard import Dashboard, before_after_table
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.evaluation.statistics import Estimate


def metrics(reward: float, step_s: float = 0.5) -> dict[str, float]:
    return {
        "reward/mean": reward,
        "time/step_s": step_s,
        "staleness/max": 2.0,
        "rollout/tokens": 100.0,
        "rollout/workers": 3.0,
        "logprob_gap/p95": 1.5e-6,
    }


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_plain_output_names_what_matters_and_the_last_step_always():
    out_console, out = console()
    now_s = [0.0]
    with Dashboard(out_console, 10, every_s=10.0, clock=lambda: now_s[0]) as dashboard:
        dashboard.waiting.begin("generating the first batch")
        for step in range(1, 10):
            now_s[0] += 4.0
            dashboard.step(step, metrics(step / 10), step)
        # The first, and whenever more than ten seconds have passed.
        shown = [line.split()[1] for line in out.getvalue().splitlines() if "reward" in line]
        assert shown == ["1/10", "4/10", "7/10"]
        dashboard.step(10, metrics(0.75), 10)
    assert not dashboard.waiting.line()
    line = out.getvalue().splitlines()[-1]
    assert line.startswith("step 10/10  reward 0.750  staleness 2  gap p95 1.5e-06  500 ms/step")
    assert "200 tok/s  workers 3  version 10  left 0 s" in line


def test_a_step_without_an_on_policy_token_has_no_gap():
    out_console, out = console()
    with Dashboard(out_console, 1, every_s=10.0) as dashboard:
        dashboard.step(1, {**metrics(0.75), "logprob_gap/p95": math.nan}, 1)
    assert "gap p95 -  " in out.getvalue() and "nan" not in out.getvalue()


def test_a_terminal_shows_the_phase_until_the_first_step_has_ended() -> None:
    out = io.StringIO()
    shown = Console(file=out, force_terminal=True, width=120)
    with Dashboard(shown, total_steps=10) as dashboard:
        dashboard.waiting.begin("importing MaxText", typical_s=20)
        dashboard.refresh()
        assert "importing MaxText: 0 s of about 20 s, typically" in out.getvalue()
        out.truncate(0)
        dashboard.step(1, metrics(0.5), 1)
        dashboard.refresh()
    assert "importing" not in out.getvalue() and "1/10" in out.getvalue()


def test_the_first_step_tells_no_speed() -> None:
    out_console, out = console()
    dashboard = Dashboard(out_console, total_steps=10, every_s=0.0)
    dashboard.step(1, metrics(0.5, 0.001), 1)
    first = out.getvalue().rstrip()
    assert "ms/step" not in first and "tok/s" not in first and "left" not in first
    assert first.endswith("gap p95 1.5e-06  workers 3  version 1")
    dashboard.step(2, metrics(0.5, 0.25), 2)
    second = out.getvalue().splitlines()[1]
    assert "250 ms/step  400 tok/s" in second and second.endswith("version 2  left 2 s")


def test_the_table_shows_the_change_in_points():
    out_console, out = console()
    low, high = Estimate(0.25, 4, 8, (0.2, 0.3)), Estimate(0.5, 4, 8, (0.4, 0.6))
    before = Evaluated(0, {"test": {"pass_at_1": low, "length_mean": low}})
    after = Evaluated(5, {"test": {"pass_at_1": high, "length_mean": high}})
    out_console.print(before_after_table(before, after))
    text = out.getvalue()
    assert "pass@1 " in text and "+25.0 points" in text and "0.250 [0.200, 0.300]" in text
    assert "8 problems x 4 samples" in text and "length" not in text

    sets = {"test": before.main, "hard": {"majority_at_3": high}}
    worse = {"test": after.main, "hard": {"majority_at_3": low}}
    out_console.print(before_after_table(Evaluated(0, sets), Evaluated(5, worse)))
    assert "hard  majority@3" in out.getvalue() and "-25.0 points" in out.getvalue()
