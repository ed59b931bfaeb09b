"""Workers whose weights cannot be read: an outage costs time, and nobody's trust."""

import pytest
from worker_harness import CONTINUE, Counting, Worker, group, section, trainer, until

from rlax_plugin.base.errors import DeadlineError, WeightsError, WeightsUnreadableError

AWAY = WeightsUnreadableError("the disk is away")


async def test_a_worker_goes_on_with_the_version_it_holds_while_that_is_enough():
    patience = section({"weights_s": 1.4})
    async with trainer(patience) as one:
        await one.publish(0)
        worker = Worker("w", Counting(5), patience, one.address)
        await until(lambda: one.held("w") == 0)
        worker.engine.faults[1] = AWAY
        await one.publish(1)
        await until(lambda: 1 in worker.engine.loads)
        del worker.engine.faults[1]
        await until(lambda: one.held("w") == 1)
        worker.engine.faults[2] = AWAY
        await one.publish(2)
        # After 0.5 s; then the next pause would outlast weights_s; so it begins again.
        await until(lambda: worker.engine.loads.count(2) >= 4)
        assert worker.engine.loads[:3] == [0, 1, 1]
        _, samples, _ = await one.dispatcher.submit(group(0, min_version=1))
        assert [s.versions.tolist() for s in samples] == [[1] * 5] * 2
        assert one.quarantined == [] and one.lost == [] and one.held("w") == 1
        # A group that needs version 2 would wait here in vain.
        worker.engine.length = worker.engine.every = 10**6
        one.dispatcher.submit(group(1, min_version=2))
        with pytest.raises(
            DeadlineError, match=r"reading version 2 \(\d+ failed attempts, .*disk is away"
        ):
            await worker.life
        (lost,) = one.lost
        assert one.quarantined == [] and lost.startswith("w: it ended: reading version 2 ")


async def test_an_outage_between_two_damaged_readings_does_not_count_as_one(short_pauses):
    class Flaky(Counting):
        async def load(self, version):
            self.faults[1] = errors.pop(0)
            return await super().load(version)

    damaged = WeightsError("crc32c")
    errors = [None, damaged, AWAY, damaged, AWAY, damaged]

    patience = section({"weights_s": 60.0}, **CONTINUE)
    async with trainer(patience) as one:
        await one.publish(0)
        worker = Worker("w", Flaky(5), patience, one.address)
        await until(lambda: one.held("w") == 0)
        await one.publish(1)
        with pytest.raises(WeightsError, match="crc32c"):
            await worker.life
        assert one.quarantined == [("w", "crc32c")] and errors == []


async def test_a_parameter_server_without_versions_ends_with_its_key():
    patience = section({"startup_s": 4.0, "weights_s": 0.5})  # the longer one counts
    async with trainer(patience) as one:
        one.fleet.newest.number = 0  # the controller speaks of one that was never published
        said = r"which version to load \(.*available: none\).*set rlax\.deadlines\.startup_s"
        with pytest.raises(DeadlineError, match=said):
            await Worker("w", Counting(5), patience, one.address).life
        assert one.quarantined == []
