"""The guard: it warns once, warns again after a recovery, and ends the run with the counts."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from unittest.mock import ANY

import pytest
from flow_harness import Harness, MixedOnly

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.config import Guard
from rlax_plugin.run.controller.limits import ALL_FAILED, KeptGuard, counted


def told(kept: Iterable[bool], **options: float) -> tuple[list[tuple[int, str]], str | None]:
    """The notes, each with the number of the group that led to it, and how the run ended."""
    notes: list[tuple[int, str]] = []
    number = 0
    guard = KeptGuard(Guard(**options), lambda text: notes.append((number, text)))
    for number, one in enumerate(kept, 1):  # noqa: B007 - notes name it
        try:
            guard.scored(None if one else "too easy")
        except TrainingError as error:
            return notes, str(error)
    return notes, None


def test_nothing_is_decided_before_there_are_enough_groups():
    assert told([False] * 9, window=10) == ([], None)
    notes, end = told([False] * 10, window=10)
    assert notes == [] and end is not None
    assert end.startswith("of the last 10 groups that were scored, the filters kept 0 (rejected: ")
    assert "10 because too easy" in end and "rlax.curation.guard.stop = 0.02" in end


def test_one_warning_until_the_share_has_recovered():
    options = {"window": 10, "warn": 0.4, "stop": 0.1}
    low = [True] * 3 + [False] * 7
    notes, end = told(low * 3, **options)
    assert end is None and [number for number, _ in notes] == [10]
    assert notes[0][1].endswith("This is less than rlax.curation.guard.warn = 0.4")
    # 4 and 5 of 10 are enough for ``warn`` and not yet a recovery; 6 are.
    wavering = [True] * 5 + [False] * 5
    assert len(told(low + wavering + low, **options)[0]) == 1
    recovered = [True] * 6 + [False] * 4
    assert [number for number, _ in told(low + recovered + low, **options)[0]] == [10, 26]


def test_rewards_that_fail_are_blamed_and_not_the_filters():
    """With the words of ``too_few_accepted``, at the end: a bundle without texts cuts them."""
    notes: list[str] = []
    guard = KeptGuard(Guard(window=10, warn=0.4, stop=0.1), notes.append)
    for kept in (*[True] * 2, *[False] * 9):
        with suppress(TrainingError):
            guard.scored(None if kept else ALL_FAILED, "" if kept else "rlax.rewards.0 (x): boom")
    words = ": rewards fail, such as: rlax.rewards.0 (x): boom; logs/rewards.log says more"
    (warning,) = notes
    assert "(rejected: 8 because all rewards failed)" in warning and warning.endswith(words)
    with pytest.raises(TrainingError) as ended:
        guard.scored(ALL_FAILED, "rlax.rewards.0 (x): boom")
    said = str(ended.value)
    assert said.endswith(f"Once the reward is mended, the same command resumes the run{words}")
    assert "filters," not in said
    for _ in range(6):  # a few failures do not blame the rewards for what the filters reject
        with suppress(TrainingError):
            guard.scored("too easy")
    with pytest.raises(TrainingError, match=r"other rlax\.curation\.filters") as ended:
        guard.scored("too easy")
    assert "boom" not in str(ended.value)


def test_the_limits_are_shares_of_the_window():
    assert told([True] + [False] * 49, window=50)[1] is None  # 0.02 is not below 0.02
    assert told([True] + [False] * 50, window=50)[1] is not None
    assert told(([True] * 7 + [False] * 93) * 2, window=100, stop=0.07) == ([(100, ANY)], None)
    assert told([False] * 99, window=10, warn=0, stop=0) == ([], None)


def test_many_reasons_are_told_in_short():
    reasons = Counter({f"rate 0.{i:02d}": 50 - i for i in range(12)})
    text = counted(reasons)
    assert text.startswith("50 because rate 0.00, 49 because rate 0.01, ")
    assert text.endswith(", 79 for 2 other reasons")  # 40 + 39
    assert counted(Counter()) == "none"


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_run_ends_and_its_resume_counts_anew(tmp_path: Path, deterministic: bool) -> None:
    """Of four groups at least one must be kept; groups of recorded batches do not count again."""

    async def begun() -> Harness:
        guard = {"window": 4, "warn": 0.5, "stop": 0.25}
        run = Harness(
            tmp_path, filters=[MixedOnly()], refill=100, guard=guard, deterministic=deterministic
        )
        await run.begin()
        return run

    async def rejected(run: Harness, count: int) -> None:
        for _ in range(count):
            await run.answers.answer(min(run.answers.open), run.latest, rewards=(1.0, 1.0))

    async def closed(run: Harness) -> None:
        await run.supervision.close()
        run.recorder.close()

    run = await begun()
    for group in (0, 1):
        await run.answers.answer(group, 0)
    await run.flow.batch(1)
    await run.published(1)
    await rejected(run, 3)
    assert len(run.notes) == 1 and "kept 1 (rejected: 3 because" in run.notes[0]
    assert not run.supervision.failed
    await rejected(run, 1)
    end = r"kept 0 .rejected: 4 because all rewards equal.* For example, prompt '.*' was answered "
    with pytest.raises(TrainingError, match=f"{end}with '.*', which has the reward 1$"):
        await asyncio.wait_for(run.flow.batch(2), 60)
    await run.flow.commit()
    await closed(run)
    again = await begun()
    batch, _ = await again.flow.batch(1)  # recorded
    assert batch.step == 1 and again.run_state.totals.rejected == {"all rewards equal": 4}
    await again.published(1)
    await rejected(again, 3)
    assert again.notes == [] and not again.supervision.failed
    await rejected(again, 1)
    with pytest.raises(TrainingError, match=r"rlax\.curation\.guard\.stop = 0\.25"):
        await asyncio.wait_for(again.flow.batch(2), 60)
    await closed(again)
