"""Episodes of several turns on the page of ``rlax report``, in a real browser."""

from dataclasses import replace

import numpy as np
import pytest
from browser import browser, executable, open_page
from playwright.sync_api import Locator, Page, expect

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import TrainBatch, Trajectory, Turn
from rlax_plugin.run.state import journal, samples
from rlax_plugin.testing import make_episode, make_group, make_prompt, make_sampled
from rlax_plugin.tools.commands.report.write import write_report

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium on PATH; .ci/browser installs one"
)

EVIL = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e"
SHOWN = EVIL.replace("\u202e", "\\u202e")
STEPS = 2


def write(files: RunFiles) -> None:
    """Two steps with the same prompt: an episode of one turn, and a cut one of three."""
    prompt = make_prompt(EVIL)
    for step in range(1, STEPS + 1):
        first = Turn(np.array([9], np.int32), make_sampled(3))
        second = Turn(np.array([7, 7], np.int32), make_sampled(2, finish="length"))
        third = Turn(np.array([5], np.int32), make_sampled(1))
        episode = replace(
            make_episode(first, second, index=1, ended="cut", text="what they read"),
            texts=("sent", EVIL, "back", "summary of it", "fine"),
        )
        trajectories = (*episode.trajectories, Trajectory((third,)))
        alone = make_episode(Turn(first.given, make_sampled(4)), text="alone")
        group = make_group([1.0, 0.5], id=step, prompt=prompt)
        one, two = group.scores
        paid = (np.array([0, 0, 0.25]), np.array([0, -0.5]), np.array([0.75]))
        scores = (one, replace(two, token_rewards=paid, metrics={"tool_calls": 2.0}))
        episodes = (alone, replace(episode, trajectories=trajectories))
        group = replace(group, episodes=episodes, scores=scores)
        table = samples.of_batch(TrainBatch(step, (group,), (np.zeros(2),)))
        files.put(journal.samples_name(step), samples.to_parquet(step, table))
    lines = [f'{{"step": {s}, "episode/turns_mean": {s + 1}}}\n' for s in range(1, STEPS + 1)]
    files.put("metrics.jsonl", "".join(lines).encode())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    files = RunFiles(tmp_path_factory.mktemp("episodes"))
    write(files)
    with browser() as chromium:
        page, problems = open_page(chromium, write_report(files.location()))
        yield page
        assert problems == []


def opened(page: Page, sample: int) -> Locator:
    page.evaluate("byId('rollout').close()")
    page.locator("#rows tr").nth(sample).click()
    expect(page.locator("#rollout-title")).to_contain_text(f"sample {sample}")
    tokens = page.locator("#rollout-tokens")
    expect(tokens.locator(".token")).to_have_count([4, 6][sample])
    return tokens


def test_an_episode_is_one_row_with_its_number_of_turns(page):
    expect(page.locator("#rows tr")).to_have_count(2 * STEPS)
    expect(page.locator("#sampled")).to_contain_text(f"all {2 * STEPS} recorded")
    headings = page.locator("#columns th").all_inner_texts()
    turns = page.locator(f"#rows td:nth-child({headings.index('turns') + 1})").all_inner_texts()
    assert turns == ["1", "3"] * STEPS
    page.fill("#search", "summary of it")  # what was given can be searched
    expect(page.locator("#rows tr")).to_have_count(STEPS)
    page.fill("#search", "")


def test_given_and_sampled_texts_are_told_apart(page):
    tokens = opened(page, 1)
    blocks = tokens.locator(":scope > div").evaluate_all("all => all.map((b) => b.className)")
    sampled, given = "turn sampled", "turn given"
    assert blocks == [sampled, given, sampled, "turn-mark", given, sampled]
    assert tokens.locator(".given-text").all_inner_texts() == [SHOWN, "summary of it"]
    assert tokens.locator(".given .token").count() == 0
    coloured = tokens.locator(".sampled .token")
    assert coloured.count() == 3 + 2 + 1
    colours = coloured.evaluate_all("all => all.map((token) => token.style.background)")
    assert all(colour.startswith("rgb") for colour in colours)
    expect(tokens).to_contain_text("trajectory 2")
    expect(page.locator("#rollout-kind")).to_have_text("Episode of 3 turns")
    expect(page.locator("#rollout-given")).to_be_visible()
    # Texts that try to be more are texts, the prompt's too.
    expect(page.locator("#rollout-prompt")).to_have_text(SHOWN)
    assert page.locator("img").count() == 0 and page.title() != "taken"


def test_the_record_says_how_an_episode_and_its_turns_ended(page):
    opened(page, 1)
    names = page.locator("#rollout-facts dt").all_inner_texts()
    facts = dict(zip(names, page.locator("#rollout-facts dd").all_inner_texts(), strict=True))
    assert facts["turns"] == "3" and facts["ended by"] == "cut"
    assert facts["turn 1"] == "3 tokens, ended by stop, reward 0.25"
    assert facts["turn 2"] == "2 tokens, ended by length, reward -0.5"
    assert facts["turn 3"] == "1 tokens, ended by stop, reward 0.75"
    assert facts["what rewards read"] == "what they read" and facts["metric tool_calls"] == "2"


def test_an_episode_of_one_turn_is_shown_as_a_completion(page):
    tokens = opened(page, 0)
    assert tokens.locator(".turn").count() == 0
    expect(page.locator("#rollout-kind")).to_have_text("Completion")
    expect(page.locator("#rollout-given")).to_be_hidden()
    # The environment did not begin with the prompt; the source that could decode it is not known.
    expect(page.locator("#rollout-asked")).to_have_text("tokens 9")
