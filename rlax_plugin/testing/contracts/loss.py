"""The loss with one part in it, as a trainer computes it, and the rules that it must fulfil.

Suffixes name axes: ``_b`` samples, ``_bt`` [rows, length].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlax_plugin.objective.loss import ObjectiveSlots, TokenOutputs, make_loss
from rlax_plugin.testing.contracts.inspection import Inspection, require

ROWS, LENGTH, SEQUENCES = 6, 8, 3
RTOL, ATOL = 1e-5, 1e-6
QUICKLY = {"xla_backend_optimization_level": 0}  # compiled in half the time, and run a few times
_LENGTHS_B = (2, 4, 1, 3, 2)  # completion tokens; the last row, and the last column, are padding
_ONE_PER_ROW = [[0], [1], [2], [3], [4], []]
_PACKED = [[0, 2, 4], [], [1], [], [3], []]
_PIECES = ([0], [1, 2], [3, 4])  # uneven micro-batches, by row
_INTEGERS = (
    "rl_mask",
    "rl_old_known",
    "rl_staleness",
    "targets_segmentation",
    "rl_group",
    "rl_group_size",
    "rl_group_tokens",
    "rl_update_sequences",
    "rl_update_groups",
    "rl_sample",
    "rl_sample_tokens",
    "rl_sample_length",
    "rl_step",
)
_GROUP_B = np.array([1, 1, 2, 2, 2])
_REWARD_B = np.array([1.0, -0.5, 0.5, -1.0, 0.0])
_IDENTITY = ("rl_mask", "targets_segmentation")  # they say what padding is


class Batch(NamedTuple):
    """TokenOutputs and ``rl_*`` arrays, float32 or int32 [rows, length]."""

    arrays: dict[str, np.ndarray]

    def only(self, rows: list[int]) -> Batch:
        """The same batch with all other rows empty."""
        here_bt = np.isin(np.arange(ROWS), rows)[:, None]
        return Batch({name: np.where(here_bt, x, 0) for name, x in self.arrays.items()})

    def cropped(self) -> Batch:
        """The same batch without the last row and column, which are padding."""
        return Batch({name: x[:-1, :-1] for name, x in self.arrays.items()})

    def soiled(self) -> Batch:
        """The same batch with garbage in the padding."""
        padding_bt = self.arrays["rl_mask"] == 0
        rng = np.random.default_rng(1)

        def garbage(name: str, x: np.ndarray) -> np.ndarray:
            if name in _IDENTITY:
                return x
            values = rng.choice([-1e30, -7.0, 3.0, 90.0], x.shape)
            return np.where(padding_bt, values if x.dtype == np.float32 else 5, x).astype(x.dtype)

        return Batch({name: garbage(name, x) for name, x in self.arrays.items()})


def batch(rows: list[list[int]] = _ONE_PER_ROW, apart: float = 1.1) -> Batch:
    """Five samples, each after one token of prompt; ``rows`` assigns them to rows.

    Args:
      apart: maximum difference of the policies' log-probs from the sampler's, nats.
    """
    rng = np.random.default_rng(0)
    longest = max(_LENGTHS_B)
    shape = (len(_LENGTHS_B), longest)
    behaviour = rng.uniform(-3.0, -0.2, shape)

    def near() -> np.ndarray:
        return behaviour + rng.uniform(-apart, apart, shape)

    tokens = {
        "rl_mask": np.ones(shape),
        "logprobs": near(),
        "entropy": rng.uniform(0, 3, shape),
        "rl_behaviour_logprobs": behaviour,
        "rl_old_logprobs": near(),
        "rl_reference_logprobs": near(),
        "rl_kl_coefficient": np.full(shape, 0.1),
        "rl_old_known": np.ones(shape),
        "rl_staleness": np.ones(shape),
        "rl_advantages": np.array([1.2, -0.7, 0.4, -1.5, 0.6])[:, None] * np.ones(shape),
    }
    lengths_b = np.array(_LENGTHS_B)
    of_samples = {
        "rl_group": _GROUP_B,
        "rl_group_size": np.bincount(_GROUP_B)[_GROUP_B],
        "rl_group_tokens": np.bincount(_GROUP_B, lengths_b)[_GROUP_B],
        "rl_update_sequences": np.full(len(lengths_b), len(lengths_b)),
        "rl_update_groups": np.full(len(lengths_b), len(np.unique(_GROUP_B))),
        "rl_sample": np.array([0, 1, 0, 1, 2]),
        "rl_sample_tokens": lengths_b,
        "rl_sample_length": lengths_b,
        "rl_total_reward": _REWARD_B,
        "rl_step": np.full(len(lengths_b), 3),
    }
    tokens |= {name: values_b[:, None] * np.ones(shape) for name, values_b in of_samples.items()}
    arrays = {name: np.zeros((ROWS, LENGTH)) for name in (*tokens, "targets_segmentation")}
    for row, members in enumerate(rows):
        end = 0
        for segment, sample in enumerate(members, start=1):
            start, end = end, end + 1 + _LENGTHS_B[sample]
            arrays["targets_segmentation"][row, start:end] = segment
            for name, values in tokens.items():
                arrays[name][row, start + 1 : end] = values[sample, : _LENGTHS_B[sample]]
    return Batch(
        {n: x.astype(np.int32 if n in _INTEGERS else np.float32) for n, x in arrays.items()}
    )


class Value(NamedTuple):
    """A loss and its gradient with respect to the log-probs."""

    loss_sum: np.ndarray
    weight: np.ndarray
    grad_bt: np.ndarray

    def on_tokens(self, of: Batch) -> np.ndarray:
        """The gradient of the mean on trained tokens, sample after sample."""
        order = np.argsort(_order(of), kind="stable")
        return self.grad_bt[of.arrays["rl_mask"] > 0][order] / max(float(self.weight), 1.0)

    @property
    def mean(self) -> float:
        return float(self.loss_sum) / max(float(self.weight), 1.0)


def _order(of: Batch) -> np.ndarray:
    """An order of trained tokens by values unique to each, which makes layouts comparable."""
    return of.arrays["rl_behaviour_logprobs"][of.arrays["rl_mask"] > 0]


Evaluate = Callable[[Batch], Value]


def compiled(slots: ObjectiveSlots) -> Evaluate:
    """The loss as a trainer computes it, compiled for each shape."""
    import jax

    loss = make_loss(slots)

    def differentiated(outputs: TokenOutputs, data: Mapping[str, Any]) -> Any:
        def total(logprobs_bt: Any) -> Any:
            loss_sum, weight, _ = loss(outputs._replace(logprobs_bt=logprobs_bt), data)
            return loss_sum, weight

        return jax.value_and_grad(total, has_aux=True)(outputs.logprobs_bt)

    run = jax.jit(differentiated, compiler_options=QUICKLY)

    def value(of: Batch) -> Value:
        (loss_sum, weight), grad_bt = jax.device_get(run(*split(of)))
        return Value(loss_sum, weight, grad_bt)

    return value


def split(of: Batch) -> tuple[TokenOutputs, dict[str, Any]]:
    """Outputs, and the other arrays that the loss takes."""
    import jax.numpy as jnp

    data = {name: jnp.asarray(x) for name, x in of.arrays.items()}
    return TokenOutputs(data.pop("logprobs"), data.pop("entropy")), data


def check_loss(part: Inspection, value: Evaluate, add_up: str) -> None:
    """Checks the rules of the loss with a part in it.

    Args:
      value: the loss, with room for ``SEQUENCES`` in a row.
      add_up: advice for micro-batches that do not add up to the whole.
    """
    clean = batch()
    expected: Value | None = None
    with part.rule(
        "its loss and gradient are finite",
        "bound ratios with rlax_plugin.api.ratio_of and divide by nothing that may be 0",
    ):
        found = value(clean)
        require(np.isfinite(found.loss_sum), f"the loss is {found.loss_sum}")
        require(np.isfinite(found.grad_bt).all(), f"the gradient holds {found.grad_bt.min()}")
        expected = found
    if expected is None:
        return
    with part.rule(
        "what padding holds changes no bit, and padding gets no gradient",
        "select by inputs.mask_bt with jax.numpy.where before any arithmetic",
    ):
        found = value(clean.soiled())
        for name, a, b in zip(Value._fields, found, expected, strict=True):
            require(np.array_equal(a, b), f"{name} is {_shown(a)} instead of {_shown(b)}")
        require(not expected.grad_bt[clean.arrays["rl_mask"] == 0].any(), "padding has a gradient")
    with part.rule(
        "uneven micro-batches add up to the whole: sums of losses over the sum of weights",
        add_up,
    ):
        pieces = [value(clean.only(rows)) for rows in _PIECES]
        added = Value(*(np.sum([getattr(p, f) for p in pieces], axis=0) for f in Value._fields))
        _same(added, clean, expected, clean, "added up over 3 micro-batches")
    with part.rule(
        "several samples packed into a row are as good as one per row",
        "add over sequences with inputs.sequence_sum, sequence_mean and sequence_count, not over "
        "rows: a row may hold several",
    ):
        packed = batch(_PACKED)
        _same(value(packed), packed, expected, clean, "packed")


def _same(found: Value, where: Batch, expected: Value, clean: Batch, how: str) -> None:
    close = np.isclose(found.mean, expected.mean, RTOL, ATOL)
    require(close, f"{how} the loss is {found.mean:.6g} instead of {expected.mean:.6g}")
    grad, wanted = found.on_tokens(where), expected.on_tokens(clean)
    if not np.allclose(grad, wanted, RTOL, ATOL):
        worst = int(np.abs(grad - wanted).argmax())
        require(
            False,
            f"{how} the gradient of a token is {grad[worst]:.6g} instead of {wanted[worst]:.6g}, "
            f"the total weight {float(found.weight):g} instead of {float(expected.weight):g}",
        )


def _shown(x: np.ndarray) -> str:
    return f"{float(x):.6g}" if x.ndim == 0 else f"an array with the sum {x.sum():.6g}"
