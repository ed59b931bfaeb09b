"""The page of ``rlax report`` in a real browser, beside the run's records."""

import numpy as np
import pytest
from browser import browser, executable, open_page
from command_line import rlax
from finished_run import FinishedRun
from playwright.sync_api import Browser, Page, expect
from runs import Records

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium on PATH; .ci/browser installs one"
)


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def run(finished_run: FinishedRun, tmp_path_factory) -> Records:
    """A finished run, with its ``report.html``."""
    finished = finished_run.copied_to(tmp_path_factory.mktemp("report"))
    done = rlax("report", str(finished.dir))
    assert (done.exit_code, done.stdout.strip()) == (0, f"{finished.dir}/report.html"), done.stderr
    return finished


@pytest.fixture(scope="module")
def opened(chromium: Browser, run: Records):
    page, problems = open_page(chromium, run.dir / "report.html")
    yield page, problems
    page.context.close()


@pytest.fixture
def page(opened: tuple[Page, list[str]]):
    """The run's page, as it is when it opens; loading it once for all tests saves seconds."""
    page, problems = opened
    page.evaluate("document.getElementById('filters').reset(); filter()")
    yield page
    assert problems == []


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def cards(page: Page) -> dict[str, str]:
    return dict(zip(texts(page, ".card dt"), texts(page, ".card dd:not(.muted)"), strict=True))


def column(page: Page, number: int) -> list[str]:
    return texts(page, f"#rows tr td:nth-child({number})")


def test_figures_are_those_of_the_records(page, run):
    summary, steps = run.summary(), run.steps()
    shown = cards(page)
    assert shown["steps"] == "20"
    assert shown["groups issued"] == f"{summary['groups_issued']:,}"
    rewards = [m["reward/mean"] for m in steps]
    assert shown["reward"] == f"{np.mean(rewards[:10]):.3f} → {np.mean(rewards[-10:]):.3f}"
    before, after = summary["pass_at_1_before"], summary["pass_at_1_after"]
    row = page.locator("#changes tbody tr", has_text="pass@1").inner_text()
    assert f"{before['value']:.3f} [{before['ci95'][0]:.3f}, {before['ci95'][1]:.3f}]" in row
    assert f"{100 * (after['value'] - before['value']):+.1f} points" in row
    expect(page.locator("#state")).to_have_text("complete")
    expect(page.locator("#missing")).to_have_count(0)


def test_charts_show_the_metrics(page, run):
    steps = run.steps()
    generated = page.evaluate(
        "document.getElementById('chart-reward').calcdata[0].map((point) => point.y)"
    )
    assert generated == [m["reward/mean"] for m in steps]
    parts = page.evaluate("byId('chart-reward-parts').calcdata.map((t) => t.map((p) => p.y))")
    of_each = [[m[f"reward_part/even_{i}"] for m in steps] for i in (0, 1)]
    assert parts[-2:] == of_each  # after the two that the legend is made of
    assert np.sum(of_each, axis=0) == pytest.approx([m["reward/mean"] for m in steps])
    titles = page.evaluate(
        "Array.from(chartPlaces(), (p) => [p.layout.xaxis.title.text, p.layout.yaxis.title.text])"
    )
    assert len(titles) >= 12 and all(x or y for x, y in titles)
    # Nothing is cut off: every axis title lies inside its figure.
    cut = page.evaluate(
        """Array.from(document.querySelectorAll("figure")).flatMap((figure) => {
          const outer = figure.getBoundingClientRect();
          const texts = Array.from(figure.querySelectorAll(".xtitle, .ytitle, .legendtext"));
          const inside = ({ left, right, bottom }) =>
            left >= outer.left && right <= outer.right + 1 && bottom <= outer.bottom;
          return texts.filter((text) => !inside(text.getBoundingClientRect()))
            .map((text) => text.textContent);
        })"""
    )
    assert cut == []


def test_the_table_searches_filters_and_sorts(page, run):
    rows = run.samples()
    count = page.locator("#count")
    expect(count).to_have_text(f"{len(rows)} of {len(rows)}")
    assert sorted(column(page, 1)[:4]) == ["1"] * 4

    page.get_by_role("button", name="mean log-prob").click()
    lowest = sorted(float(np.mean(r["logprobs"])) for r in rows)[:50]
    assert [float(shown) for shown in column(page, 8)] == pytest.approx(lowest, abs=6e-4)
    page.get_by_role("button", name="mean log-prob").click()
    assert float(column(page, 8)[0]) == pytest.approx(
        max(float(np.mean(r["logprobs"])) for r in rows), abs=6e-4
    )

    page.keyboard.press("/")
    page.keyboard.type("local-1 done")
    wanted = [r for r in rows if r["workers"] == ["local-1"] and r["finish"] == "stop"]
    expect(count).to_have_text(f"{len(wanted)} of {len(rows)}")
    page.fill("#search", "")
    page.select_option("#fate", label="trained")
    page.fill("#from", "3")
    page.fill("#to", "4")
    wanted = [r for r in rows if r["advantage"] is not None and r["step"] in (3, 4)]
    expect(count).to_have_text(f"{len(wanted)} of {len(rows)}")
    assert len(wanted) == 2 * 4 * 4

    page.fill("#from", "")
    page.fill("#to", "")
    page.select_option("#fate", "")
    page.click("#next")
    expect(page.locator("#page")).to_have_text(f"page 2 of {-(-len(rows) // 50)}")


def test_a_rollout_opens_token_by_token(page, run):
    rows = run.samples()
    first = min(
        (r for r in rows if len(r["tokens"]) > 3),
        key=lambda r: (r["step"], r["group"], r["sample"]),
    )
    page.get_by_role("button", name="group", exact=True).click()
    line = (
        page.locator("#rows tr")
        .filter(has=page.locator(f"td:nth-child(2):text-is('{first['group']}')"))
        .filter(has=page.locator(f"td:nth-child(3):text-is('{first['sample']}')"))
    )
    line.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#rollout-tokens .token")).to_have_count(len(first["tokens"]))
    expect(page.locator("#rollout-prompt")).to_have_text(first["prompt"])
    shown = texts(page, "#rollout-tokens .token:not(.unseen)")
    assert "".join(shown) == first["completion"]
    tips = [t.get_attribute("title") or "" for t in page.locator("#rollout-tokens .token").all()]
    for tip, token, logprob, version in zip(
        tips, first["tokens"], first["logprobs"], first["versions"], strict=True
    ):
        assert tip.startswith(f"token {token}: {logprob:.3f} nats")
        assert tip.endswith(f"version {version}")
    facts = page.locator("#rollout-facts")
    expect(facts).to_contain_text(str(first["seed"]))
    expect(facts).to_contain_text("+".join(first["workers"]))
    parts = page.locator("dt:text-matches('^of it even_[01]$')")
    of_it = facts.locator("div", has=parts).locator("dd")
    assert [float(text) for text in of_it.all_inner_texts()] == first["reward_parts"]
    page.get_by_label("weight version").check()
    expect(page.locator("#legend")).to_contain_text("weight version")
    title = page.locator("#rollout-title").inner_text()
    page.get_by_label("weight version").evaluate("(radio) => radio.blur()")
    page.click("#later")
    expect(page.locator("#rollout-title")).not_to_have_text(title)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#rollout-title")).to_have_text(title)
    page.keyboard.press("Escape")
    expect(page.locator("#rollout")).not_to_be_visible()


def test_all_charts_over_steps_move_to_another_x_axis(page, run):
    steps = run.steps()
    tokens = np.cumsum([m["rollout/tokens"] for m in steps])
    hours = np.cumsum([m["time/step_s"] for m in steps]) / 3600
    x_of = "(key) => drawAll().then(() => byId(key).calcdata[0].map((point) => point.x))"
    for label, positions in (("tokens", tokens), ("time", hours), ("step", np.arange(1, 21))):
        page.locator("#axis").get_by_label(label, exact=True).check()
        for key in ("chart-reward", "chart-phases"):
            assert page.evaluate(x_of, key) == pytest.approx(positions)
    titles = page.evaluate("xAxes.titles")
    assert titles["samples"] == "samples scored"
    samples = page.evaluate("moved(20, 'samples', 0)")
    assert samples == sum(m["rollout/samples"] for m in steps) == len(run.samples())


def test_a_narrow_page_breaks_no_word_and_covers_no_legend(chromium, run):
    page, problems = open_page(chromium, run.dir / "report.html", width=520)
    # A word on two lines has two rectangles.
    broken = page.evaluate(
        """() => [...document.querySelectorAll("#changes td, .card dt")].flatMap((cell) => {
          const node = cell.firstChild?.firstChild ?? cell.firstChild, range = new Range();
          return [...(node?.data ?? "").matchAll(/\\S+/g)].filter((word) => {
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            return range.getClientRects().length > 1;
          }).map(String);
        })"""
    )
    assert broken == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 520
    chart = page.locator("#chart-reward")
    chart.scroll_into_view_if_needed()
    chart.hover()
    icons = chart.locator(".modebar-container .modebar").bounding_box()
    legend = chart.locator(".legend").bounding_box()
    assert (
        icons["x"] >= legend["x"] + legend["width"] or icons["y"] >= legend["y"] + legend["height"]
    )
    assert problems == []
    page.context.close()
