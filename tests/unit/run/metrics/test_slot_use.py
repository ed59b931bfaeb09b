"""The share of slots in use, by numbers."""

from dataclasses import dataclass, field

from rlax_plugin.run.controller.step_figures import SlotUse


@dataclass
class Worker:
    name: str
    slots: int
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str]:
        return self.name, "p"

    def counts(self, steps: float, used: float) -> None:
        self.figures = {"steps_total": steps, "slot_steps_total": used}


def test_the_slots_of_all_workers_count_for_the_steps_that_they_have_decoded() -> None:
    use, large, small = SlotUse(), Worker("large", 16), Worker("small", 4)
    large.counts(10, 40)  # 160 slot-steps, 40 in use
    small.counts(40, 40)  # 160 and 40
    assert use.take([large, small]) == {"rollout/slots_used": 80 / 320}
    large.counts(20, 200)  # 160 more, all in use; the small one has decoded nothing
    assert use.take([large, small]) == {"rollout/slots_used": 1.0}
    assert use.take([large, small]) == {}


def test_the_time_of_a_decode_step_is_the_mean_over_those_of_all_workers() -> None:
    use, fast, slow = SlotUse(), Worker("fast", 2), Worker("slow", 2)
    fast.figures = {"steps_total": 30.0, "slot_steps_total": 60.0, "decode_s_total": 3.0}
    slow.figures = {"steps_total": 10.0, "slot_steps_total": 20.0, "decode_s_total": 9.0}
    assert use.take([fast, slow]) == {"rollout/slots_used": 1.0, "rollout/decode_step_s": 12 / 40}
    fast.figures |= {"steps_total": 50.0, "slot_steps_total": 80.0, "decode_s_total": 8.0}
    silent = Worker("silent", 2)  # its engine does not report the time
    silent.counts(20, 20)
    found = use.take([fast, slow, silent])
    assert found == {"rollout/slots_used": 40 / 80, "rollout/decode_step_s": 5 / 20}


def test_a_worker_that_was_lost_or_does_not_count_leaves_the_others() -> None:
    use, one, other = SlotUse(), Worker("one", 2), Worker("other", 2)
    one.counts(10, 20)
    other.figures = {"steps_total": 7.0, "tokens_total": 7.0}
    assert use.take([one, other]) == {"rollout/slots_used": 1.0}
    assert use.take([other]) == {}
    assert use.take([]) == {}
