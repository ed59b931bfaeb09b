"""Contract of trainers: the order of their calls, stops, and going on from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from rlax_plugin.ports.protocols import CheckpointReader, Trainer
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.fakes import FakeTrainerLink

_ORDER = (
    "publish what it starts from; then for each step: next_batch(step), update, publish(step) in "
    "fresh buffers, step_done(step)"
)
_CHECKPOINT = (
    "call link.before_checkpoint(step) and then write its own checkpoint, at the latest after the "
    "last step and when link.stop_requested"
)


def check_training(
    make_trainer: Callable[[], Trainer],
    make_link: Callable[..., FakeTrainerLink],
    steps: int,
    part: Inspection,
) -> None:
    """Trains, and goes on; see ``check_trainer``.

    Args:
      make_trainer: makes one of the same run each time; what it has written is still there.
      make_link: takes the keyword arguments of ``FakeTrainerLink``.
      steps: the run's, at least 3.
    """
    with part.rule("stops after the step in which it is asked to, with a checkpoint", _CHECKPOINT):
        link = make_link(stop_after=1)
        make_trainer().run(link)
        link.close()
        require(link.last_step == 1, f"asked to stop in step 1, it ended after {link.last_step}")
        saved = ("before_checkpoint", 1) in link.calls
        require(saved, f"no before_checkpoint(1) among {link.calls}")
    if not part.sound:
        return
    with part.rule(
        "goes on from its checkpoint, step by step to the last one", f"{_ORDER}; {_CHECKPOINT}"
    ):
        link = make_link()
        make_trainer().run(link)
        link.close()
        first = link.calls[0]
        require(first == ("publish", 1), f"started again after step 1, its first call is {first}")
        require(link.last_step == steps, f"it ended after step {link.last_step} of {steps}")
        saved = ("before_checkpoint", steps) in link.calls
        require(saved, f"no before_checkpoint({steps}) among {link.calls}")
    reader = make_trainer()
    if part.sound and isinstance(reader, CheckpointReader):
        with part.rule(
            "lists its checkpoints, and publishes one under its step",
            "return {step: name} from checkpoints(), and call link.publish(step, ...) with the "
            "weights of the checkpoint of that name",
        ):
            names = reader.checkpoints()
            require(steps in names, f"no step {steps} among {dict(names)}")
            link = make_link()
            reader.publish_checkpoint(link, names[steps])
            require(link.calls == [("publish", steps)], f"its calls are {link.calls}")
