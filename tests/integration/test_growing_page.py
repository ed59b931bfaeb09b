"""The page of ``rlax report --watch`` in a real browser, while its run seems to go on."""

import json
from contextlib import suppress
from socket import gethostname

import psutil
import pytest
from browser import browser, executable, open_page
from playwright.sync_api import Error, Page, expect
from waiting import wait_until

from rlax_plugin.tools.commands.report.write import ReportPage

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium on PATH; .ci/browser installs one"
)


def shown_steps(page: Page) -> str:
    return page.locator(".card", has=page.locator("dt:text-is('steps')")).inner_text()


def stays(page: Page) -> bool:
    """Presses a button of the mouse, as it were: a page does not reload itself meanwhile."""
    with suppress(Error):  # the page reloaded itself while it was asked
        return page.evaluate("document.body.dataset.reloading === 'ready' && (pressed = true)")
    return False


def is_kept(page: Page) -> None:
    """Asserts that the page is as it was left before it reloaded itself."""
    top = "document.getElementById('rollouts').getBoundingClientRect().top"
    # First: drawing all charts below may move the page.
    assert page.evaluate(top) == pytest.approx(70, abs=2)
    expect(page.locator("#axis input:checked")).to_have_value("tokens")
    expect(page.locator("#search")).to_have_value("local-0")
    title = "drawAll().then(() => byId('chart-reward').layout.xaxis.title.text)"
    assert page.evaluate(title) == "tokens of scored samples"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_page_grows_with_its_run(finished_run, tmp_path):
    files = finished_run.copied_to(tmp_path).dir
    (later := tmp_path / "later").mkdir()
    for name in ("metrics.jsonl", "summary.json", "journal", "samples", "evaluation"):
        (files / name).rename(later / name)
    process = psutil.Process()  # this one is the trainer, for the page
    holder = {"host": gethostname(), "pid": process.pid, "started_s": process.create_time()}
    (files / ".lock").write_text(json.dumps(holder))
    report = ReportPage(str(files), None)
    report.write(reload_s=0.5)
    with browser() as chromium:
        # Before a step.
        page, problems = open_page(chromium, report.path)
        expect(page.locator("#state")).to_have_text("training")
        expect(page.locator("#charts .notice")).to_have_text("No step has been recorded so far.")
        expect(page.locator("#watched")).to_contain_text("reloads, written at")

        # Midway: nothing but the page itself loads it again.
        four = (later / "metrics.jsonl").read_text().splitlines(keepends=True)[:4]
        (files / "metrics.jsonl").write_text("".join(four))
        (later / "samples").rename(files / "samples")
        report.write(reload_s=0.5)
        expect(page.locator(".card dd", has_text="4").first).to_be_visible()
        wait_until(lambda: stays(page), "a page that does not reload itself")
        assert shown_steps(page).split()[:4] == ["steps", "4", "of", "20"]
        page.get_by_label("tokens", exact=True).check()
        page.click("#theme")
        page.fill("#search", "local-0")
        page.evaluate("pressed = true; drawAll()")  # charts drawn later move what is below
        page.evaluate("scrollTo(0, document.getElementById('rollouts').offsetTop - 70)")
        page.evaluate("window.isTheSame = true")
        page.locator("#rows tr").first.click()
        (later / "metrics.jsonl").rename(files / "metrics.jsonl")
        report.write(reload_s=0.5)
        page.wait_for_timeout(1500)  # three times as long as until it would reload
        assert page.evaluate("window.isTheSame")  # a rollout is open
        page.keyboard.press("Escape")

        # After the end.
        (files / ".lock").unlink()
        (later / "summary.json").rename(files / "summary.json")
        (later / "journal").rename(files / "journal")
        report.write()
        expect(page.locator("#state")).to_have_text("complete")
        page.wait_for_selector("body[data-reloading=ready]")
        is_kept(page)
        assert shown_steps(page).split()[:4] == ["steps", "20", "of", "20"]
        expect(page.locator("#watched")).to_have_count(0)
        assert problems == []
        page.context.close()
