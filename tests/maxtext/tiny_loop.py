"""The smallest run of MaxText's train_loop: its config, its batches, and what it reports."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rlax_maxtext.canary_forward import CanaryForward

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from rlax_plugin.config.loading import resolve
from rlax_plugin.training.objective.batches import ARRAYS

TINY = str(Path(__file__).with_name("tiny.yml"))
ROWS, LENGTH, VOCAB = 8, 16, 64


def configure(tmp_path, *argv, **overrides):
    config = resolve(TINY, argv)
    return rlax_config.initialize(config, base_output_directory=str(tmp_path), **overrides)


def batch(step):
    """Random tokens; row r trains on its last r + 1 targets: the halves differ in weight."""
    rng = np.random.default_rng(step)
    arrays = {name: spec.zeros(ROWS, LENGTH) for name, spec in ARRAYS.items()}
    arrays["inputs"][:] = rng.integers(0, VOCAB, (ROWS, LENGTH))
    arrays["targets"][:] = rng.integers(0, VOCAB, (ROWS, LENGTH))
    for side in ("inputs", "targets"):
        arrays[f"{side}_position"][:] = np.arange(LENGTH)
        arrays[f"{side}_segmentation"][:] = 1
    arrays["rl_mask"][:] = np.arange(LENGTH) >= LENGTH - 1 - np.arange(ROWS)[:, None]
    arrays["rl_advantages"][:] = rng.normal(size=(ROWS, 1))
    return arrays


def policy_gradient(outputs, data):
    logprobs_bt = outputs.logprobs_bt
    mask_bt = data["rl_mask"].astype(jnp.float32)
    loss_sum = -jnp.sum(logprobs_bt * data["rl_advantages"] * mask_bt)
    metrics = {"tokens": mask_bt.sum(), "logprob_sum": (logprobs_bt * mask_bt).sum()}
    return loss_sum, mask_bt.sum(), metrics


class Recorder:
    """Collects what the loop reports; with ``looks`` also the first logits and each canary."""

    def __init__(self, stop_after=None, batches=batch, looks=False):
        self.stop_after, self.batches, self.looks, self.calls = stop_after, batches, looks, []
        self.weights, self.metrics, self.canaries = {}, {}, {}
        self.canary = CanaryForward(batch(1)["inputs"][0])

    def events(self):
        return Events(
            batches=lambda step: self.calls.append(("batch", step)) or self.batches(step),
            on_step_end=self.on_step_end,
            decide=lambda step: (step == self.stop_after,) * 2,
            on_start=self.on_start,
            before_checkpoint=lambda step: self.calls.append(("checkpoint", step)),
        )

    def on_start(self, loop):
        self.publish("start", loop)
        if not self.looks:
            return
        data = self.batches(1)
        with loop.shardings():
            model = nnx.merge(loop.graph, loop.model_state, copy=True)
            self.first_logits = np.asarray(
                model(
                    decoder_input_tokens=data["inputs"],
                    decoder_positions=data["inputs_position"],
                    decoder_segment_ids=data["inputs_segmentation"],
                    enable_dropout=False,
                )
            )

    def publish(self, what, loop):
        self.calls.append((what, loop.completed))
        arrays = self.weights[loop.completed] = fresh_weights(loop)
        if self.looks:
            self.canaries[loop.completed] = self.canary(loop, arrays)

    def on_step_end(self, loop, metrics):
        self.publish("end", loop)
        self.metrics[loop.completed] = jax.device_get(metrics)


def train(tmp_path, *argv, recorder=None, frozen_updates=0, **overrides):
    recorder = recorder or Recorder()
    config = configure(tmp_path, *argv, **overrides)
    events = recorder.events()
    recorder.loop = run_train_loop(
        config, events, arrays=ARRAYS, objective=policy_gradient, frozen_updates=frozen_updates
    )
    return recorder
