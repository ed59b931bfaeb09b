"""Batches that are written while they train."""

import asyncio
import errno
import threading

import pytest
from flow_harness import Harness, settle

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.run.state import journal, recorder
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.tools.commands.audit import audit


async def scored(run, *groups):
    await run.begin()
    for group in groups:
        await run.answers.answer(group, 0)


async def test_snapshot_names_the_segment_that_is_still_being_written(tmp_path) -> None:
    """Groups 0 and 1 train; 2 is scored, and waits in the segment that is still being written."""
    run = Harness(tmp_path, 1, 2)
    gate = threading.Event()
    await scored(run, 0, 1, 2)
    held = run.recorder._worker.submit(gate.wait, 60)
    _, stats = await run.flow.batch(1)
    assert stats.committed is not None and not stats.committed.done()
    committing = asyncio.ensure_future(run.flow.commit())
    await settle()
    gate.set()
    commit, saved = await committing
    assert held.result(60) and stats.committed.result(60).kept == (2,)
    assert saved.document["ready"] == {"2": 1} and commit.number == 2
    assert stats.commit_s > 0 and [s.activity for s in stats.spans].count("writes the batch") == 1
    assert audit(run.files).violation is None


async def test_after_a_segment_that_was_not_written_none_is(tmp_path, monkeypatch) -> None:
    """It would say that a step has trained, without its batch."""
    real, failures = journal.write, [OSError(errno.ENOSPC, "No space left on device")]

    def write(*arguments, **named):
        if failures:
            raise failures.pop()
        return real(*arguments, **named)

    monkeypatch.setattr(recorder.journal, "write", write)
    run = Harness(tmp_path, 1, 2)
    await scored(run, 0, 1)
    _, stats = await run.flow.batch(1)
    assert stats.committed is not None
    with pytest.raises(OSError, match="No space left"):
        stats.committed.result(60)
    with pytest.raises(RlaxError, match=r"an earlier segment was not written: .*No space left"):
        await run.flow.commit()
    assert list(journal.read(run.files)) == []
    assert [type(error) for error in run.errors] == [OSError, RlaxError]


async def test_after_events_that_were_not_written_none_are(tmp_path, monkeypatch) -> None:
    """The ledger would say what became of a group without saying that there is one."""
    real, failures = Ledger.add, [OSError(errno.ENOSPC, "No space left on device")]

    def add(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(Ledger, "add", add)
    run = Harness(tmp_path, 1, 2)
    await run.begin()
    await run.recorder.flush()
    await run.answers.answer(0, 0)
    await run.recorder.flush()
    assert [type(error) for error in run.errors] == [OSError, RlaxError]
    assert "earlier events were not written: [Errno 28]" in str(run.errors[1])
    assert run.ledger.tail(0, journal.START) in (None, ([], []))
