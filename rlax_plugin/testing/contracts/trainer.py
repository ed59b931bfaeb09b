"""Contract of trainers: the order of their calls, stops, and resuming from a checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.ports.training import Conversion, Trainer
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


def _check_conversion(conversion: Conversion, arrays: Arrays) -> None:
    """Compares what a conversion writes with what it says that it has written."""
    tensors: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory(prefix="rlax-check-") as folder:
        conversion(arrays, Path(folder), tensors.__setitem__)
        files = [load_file(file) for file in Path(folder).glob("*.safetensors")]
    found = {name: tensor for file in files for name, tensor in file.items()}
    require(bool(found), "there are no tensors in files *.safetensors")
    for name in sorted(found.keys() | tensors.keys()):
        same = name in found and name in tensors
        same = same and found[name].dtype == tensors[name].dtype
        same = same and np.array_equal(found[name], tensors[name])
        require(same, f"tensor {name!r} in the files is not the one given to wrote")


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
        message = f"a stop was requested in step 1, but it ended after {port.last_step}"
        require(port.last_step == 1, message)
        saved = ("before_checkpoint", 1) in port.calls
        require(saved, f"no before_checkpoint(1) among {port.calls}")
    if not part.sound:
        return
    with part.rule(
        "continues from its checkpoint, step by step to the last one", f"{_ORDER}; {_CHECKPOINT}"
    ):
        port, trainer = make_port(), make_trainer()
        trainer.run(port)
        port.close()
        call = port.calls[0]
        require(call == ("publish", 1), f"started again after step 1, its first call is {call}")
        require(port.last_step == steps, f"it ended after step {port.last_step} of {steps}")
        saved = ("before_checkpoint", steps) in port.calls
        require(saved, f"no before_checkpoint({steps}) among {port.calls}")
    if part.sound and trainer.converts_versions:
        with part.rule(
            "converts what it has published into the files that it names",
            "converter() returns a function (arrays, directory, wrote) that writes *.safetensors "
            "into the directory, and calls wrote(name, tensor) for each tensor in them",
        ):
            _check_conversion(trainer.converter(), port.published[steps])
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
