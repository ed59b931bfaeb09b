"""Contract of trainers: the order of their calls, stops, and resuming from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from rlax_plugin.ports.training import Trainer
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.contracts.trial import STEPS, Trial
from rlax_plugin.testing.fakes import FakeTrainerPort

_ORDER = (
    "publish what it starts from; then for each step: next_batch(step), update, decide(step), "
    "publish(step) in fresh buffers, step_done(step)"
)
_CHECKPOINT = (
    "call port.before_checkpoint(step) and then write its own checkpoint, after the last step and "
    "after each step for which port.decide(step).save is true"
)


def check_trainer(trial: Trial, part: Inspection) -> None:
    """Trains the toy policy."""
    check_training(trial.build, FakeTrainerPort, STEPS, part)


def check_training(
    make_trainer: Callable[[], Trainer],
    make_port: Callable[..., FakeTrainerPort],
    steps: int,
    part: Inspection,
) -> None:
    """Trains, and resumes; see ``testing.check_trainer``.

    Args:
      make_trainer: makes a trainer of the same run each time, with the earlier one's files.
      make_port: takes the keyword arguments of ``FakeTrainerPort``.
      steps: number of the run's steps, at least 3.
    """
    first = make_trainer()
    part.look(first, Trainer)
    if first.keeps_checkpoints:
        with part.rule(
            "publishes what it starts from, and trains nothing",
            "publish_first(port) calls port.publish(0, ...) and returns",
        ):
            port = make_port()
            first.publish_first(port)
            port.close()
            require(port.calls == [("publish", 0)], f"its calls are {port.calls}")
    if not part.sound:
        return
    with part.rule(
        "stops after the step in which a stop is requested, with a checkpoint", _CHECKPOINT
    ):
        port = make_port(stop_after=1)
        make_trainer().run(port)
        port.close()
        require(
            port.last_step == 1,
            f"a stop was requested in step 1, but it ended after {port.last_step}",
        )
        saved = ("before_checkpoint", 1) in port.calls
        require(saved, f"no before_checkpoint(1) among {port.calls}")
    if not part.sound:
        return
    with part.rule(
        "continues from its checkpoint, step by step to the last one", f"{_ORDER}; {_CHECKPOINT}"
    ):
        port = make_port()
        make_trainer().run(port)
        port.close()
        call = port.calls[0]
        require(call == ("publish", 1), f"started again after step 1, its first call is {call}")
        require(port.last_step == steps, f"it ended after step {port.last_step} of {steps}")
        saved = ("before_checkpoint", steps) in port.calls
        require(saved, f"no before_checkpoint({steps}) among {port.calls}")
    reader = make_trainer()
    if part.sound and reader.keeps_checkpoints:
        with part.rule(
            "lists its checkpoints, and publishes one under its step",
            "return {step: name} from checkpoints(), and call port.publish(step, ...) with the "
            "weights of the checkpoint of that name",
        ):
            names = reader.checkpoints()
            require(steps in names, f"no step {steps} among {dict(names)}")
            port = make_port()
            reader.publish_checkpoint(port, names[steps])
            require(port.calls == [("publish", steps)], f"its calls are {port.calls}")
