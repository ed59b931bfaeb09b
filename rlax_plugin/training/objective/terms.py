"""Terms that are added to the loss beside the objective, such as a distillation's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlax_plugin.base.errors import PluginError
from rlax_plugin.training.objective.inputs import TokenOutputs

if TYPE_CHECKING:
    import numpy as np

_SUM, _WEIGHT, _SCALE = "term_sum/", "term_weight/", "term_scale/"


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A term that is added to the minimised loss: coefficient x sum / weight, over a whole update.

    All functions are pure and traced by JAX, often over a micro-batch.

    Attributes:
      sum: (outputs, batch arrays) -> scalar, with the intended gradient. Select with
        ``jnp.where(data["rl_mask"] > 0, ...)`` before any arithmetic: the contents of padding must
        not matter.
      weight: batch arrays -> scalar, a count, 0 or at least 1, such as the number of trained
        tokens. It must depend on the batch only.
      outputs: names in ``further`` of the model's outputs that ``sum`` reads, such as ``features``.
      coefficient: batch arrays -> factor of the term in the loss, not in what is reported; None: 1.
        The same in all micro-batches that ``sum`` reads a token of.
    """

    sum: Callable[[TokenOutputs, Mapping[str, Any]], Any]
    weight: Callable[[Mapping[str, Any]], Any]
    outputs: tuple[str, ...] = ()
    coefficient: Callable[[Mapping[str, Any]], Any] | None = None


Terms = Mapping[str, LossTerm]
"""name -> term."""


def added(
    terms: Terms, outputs: TokenOutputs, data: Mapping[str, Any], weight: Any, dtype: Any
) -> tuple[Any, dict[str, Any]]:
    """Adds up terms so that they can be divided by the weight of the objective.

    Args:
      weight: of the objective in ``data``. A loss is divided by max(sum of weights, 1).
      dtype: of the sums.

    Returns:
      The sum, and metrics that add up; see ``reported``.
    """
    import jax
    import jax.numpy as jnp

    total: Any = jnp.zeros((), dtype)
    metrics: dict[str, Any] = {}
    for name, term in terms.items():
        term_sum = jnp.asarray(term.sum(outputs, data), dtype)
        term_weight = jax.lax.stop_gradient(jnp.asarray(term.weight(data), dtype))
        for what, found in (("sum", term_sum), ("weight", term_weight)):
            if found.shape != ():
                raise PluginError(
                    f"the {what} of the loss's term {name!r} has shape {list(found.shape)}, "
                    "expected a number"
                )
        # Of a micro-batch both weights are those of the whole update.
        whole = data.get(f"{_SCALE}{name}")
        scale = jnp.maximum(weight, 1) / jnp.maximum(term_weight, 1) if whole is None else whole
        factor = 1.0 if term.coefficient is None else term.coefficient(data)
        total += jnp.max(jnp.asarray(scale, dtype)) * jnp.asarray(factor, dtype) * term_sum
        metrics |= mean(name, jax.lax.stop_gradient(term_sum), term_weight)
    return total, metrics


def mean(name: str, total: Any, weight: Any) -> dict[str, Any]:
    """Returns the sums of which ``reported`` makes ``objective/<name>``, total / weight."""
    return {f"{_SUM}{name}": total, f"{_WEIGHT}{name}": weight}


def scale_names(terms: Terms) -> tuple[str, ...]:
    """Names of the float32 arrays that ``whole_update`` adds."""
    return tuple(f"{_SCALE}{name}" for name in terms)


def whole_update(
    terms: Terms, batch: Mapping[str, np.ndarray], weight: Callable[[Mapping[str, Any]], Any]
) -> dict[str, np.ndarray]:
    """A batch of one update, with the arrays that keep terms exact when it is cut in micro-batches.

    Args:
      batch: the arrays that the loss receives in all micro-batches together.
      weight: batch -> the objective's weight.
    """
    import numpy as np

    of_loss = max(float(weight(batch)), 1.0)
    scales = {
        f"{_SCALE}{name}": np.full(
            batch["rl_mask"].shape, of_loss / max(float(term.weight(batch)), 1.0), np.float32
        )
        for name, term in terms.items()
    }
    return dict(batch) | scales


def reported(totals: Mapping[str, Any]) -> dict[str, float]:
    """``objective/<name>`` of every term, its sum over its weight, from the sums of a step."""
    found = {}
    for key, total in totals.items():
        if key.startswith(_SUM):
            name = key.removeprefix(_SUM)
            if (weight := float(totals[f"{_WEIGHT}{name}"])) > 0:
                found[f"objective/{name}"] = float(total) / weight
    return found
