"""The page of ``rlax report --watch`` in a real browser, while a run goes on."""

from __future__ import annotations

from contextlib import suppress

import pytest
from browser import browser, executable, open_page
from playwright.sync_api import Error, Page, expect
from runs import DEADLINE_S, HELPERS, Run, held, process
from waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        executable() is None, reason="no Chromium on PATH; .ci/browser installs one"
    ),
]


def shown_steps(page: Page) -> str:
    return page.locator(".card", has=page.locator("dt:text-is('steps')")).inner_text()


def stays(page: Page) -> bool:
    """Presses a button of the mouse, as it were: a page does not reload itself meanwhile."""
    with suppress(Error):  # the page reloaded itself while it was asked
        return page.evaluate("document.body.dataset.reloading === 'ready' && (pressed = true)")
    return False


def is_kept(page: Page) -> None:
    """Asserts that the page is as it was left before it reloaded itself."""
    expect(page.locator("#axis input:checked")).to_have_value("tokens")
    expect(page.locator("#search")).to_have_value("local-0")
    title = "drawAll().then(() => byId('chart-reward').layout.xaxis.title.text)"
    assert page.evaluate(title) == "tokens of scored samples"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    top = "document.getElementById('rollouts').getBoundingClientRect().top"
    assert page.evaluate(top) == pytest.approx(70, abs=2)


def test_a_page_grows_with_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=":")
    first, middle = tmp_path / "first", tmp_path / "middle"
    run = Run(tmp_path, "steps=8", *held({1: first, 5: middle}), "rlax.evaluation.problems=0")
    run.until((run.dir / "config.yml").exists, "a config")
    watching = ("report", str(run.dir), "--watch", "--every-s", "0.5")
    with (
        process(tmp_path, "watch", *watching) as watch,
        browser() as chromium,
    ):
        path = run.dir / "report.html"
        run.until(path.exists, "the first page")

        # Before a step.
        page, problems = open_page(chromium, path)
        expect(page.locator("#state")).to_have_text("training")
        expect(page.locator("#charts .notice")).to_have_text("No step has been recorded so far.")
        expect(page.locator("#watched")).to_contain_text("reloads, written at")

        # Midway: nothing but the page itself loads it again.
        first.touch()
        written = tmp_path / "watch.log"
        run.until(lambda: "step 4, written at" in written.read_text(), "a page of step 4")
        expect(page.locator(".card dd", has_text="4").first).to_be_visible()
        wait_until(lambda: stays(page), "a page that does not reload itself")
        assert shown_steps(page).split()[:4] == ["steps", "4", "of", "8"]
        page.get_by_label("tokens", exact=True).check()
        page.click("#theme")
        page.fill("#search", "local-0")
        page.evaluate("pressed = true; drawAll()")  # charts drawn later move what is below
        page.evaluate("scrollTo(0, document.getElementById('rollouts').offsetTop - 70)")
        page.evaluate("window.isTheSame = true")
        page.locator("#rows tr").first.click()
        middle.touch()
        run.until(lambda: len(run.steps()) == 8, "the last step")
        page.wait_for_timeout(3000)
        assert page.evaluate("window.isTheSame")  # a rollout is open
        page.keyboard.press("Escape")

        # After the end.
        status, out = run.end()
        assert status == 0, out
        assert watch.wait(DEADLINE_S) == 0, (tmp_path / "watch.log").read_text()
        expect(page.locator("#state")).to_have_text("complete")
        page.wait_for_selector("body[data-reloading=ready]")
        is_kept(page)
        assert shown_steps(page).split()[:4] == ["steps", "8", "of", "8"]
        expect(page.locator("#watched")).to_have_count(0)
        assert problems == []
        page.context.close()
    said = (tmp_path / "watch.log").read_text().splitlines()
    assert f"{path}: no step yet, written at" in said[0]
    assert any(line.startswith(f"{path}: step 4, written at") for line in said)
    assert said[-2:] == [f"{path}: step 8: the run has ended (complete)", str(path)]
