"""Parameters that a signal learns by itself, such as the head of a critic, and their optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.config import Section
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.training.signals.state_files import SignalState

_Decay = Annotated[float, Field(ge=0, lt=1)]
_FILE = "learner"
_COUNT = "count"
_KINDS = ("params", "mean", "square")


class Optimizer(Section):
    """AdamW for parameters of a signal (https://arxiv.org/abs/1711.05101).

    It is a field of the options of a signal that learns.
    """

    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=1e-3, description="size of a step, constant"
    )
    b1: _Decay = Field(default=0.9, description="decay of the mean of the gradients")
    b2: _Decay = Field(default=0.999, description="decay of the mean of their squares")
    epsilon: Annotated[float, Field(gt=0)] = Field(
        default=1e-8, description="number that is added to the root of the mean square"
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="share of a parameter that is subtracted, times learning_rate"
    )
    max_norm: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="largest norm of the gradient of all parameters together; a larger gradient "
        "is scaled down to it. 0: no limit",
    )

    def moved(
        self, count: Any, param: Any, mean: Any, square: Any, slope: Any, sqrt: Callable[[Any], Any]
    ) -> tuple[Any, Any, Any]:
        """Takes one step for one parameter, in numpy or JAX.

        Args:
          count: number of this step, from 1.
          param, mean, square: the parameter, and the decaying means of its gradients and their
            squares.
          slope: its gradient, of the same dtype, after ``scale``.
          sqrt: of the library of the arrays.

        Returns:
          The new parameter, mean and square.
        """
        first, second = 1 - self.b1**count, 1 - self.b2**count
        mean = self.b1 * mean + (1 - self.b1) * slope
        square = self.b2 * square + (1 - self.b2) * slope**2
        move = (mean / first) / (sqrt(square / second) + self.epsilon)
        return param - self.learning_rate * (move + self.weight_decay * param), mean, square

    def scale(self, norm: float) -> float:
        """Returns the factor of a gradient whose norm is ``norm``; see ``max_norm``."""
        return self.max_norm / max(norm, self.max_norm) if self.max_norm else 1.0


class Learner:
    """Parameters, and the moments of their gradients, which belong in a signal's state.

    All arrays are in the memory of the host, as numpy arrays, so that a resumed process computes
    the same bits. They can be passed to a function that JAX traces.

    Args:
      optimizer: of the signal's options.
      params: name -> initial array of float32 or float64.

    Attributes:
      params: name -> current array.
    """

    def __init__(self, optimizer: Optimizer, params: Arrays):
        self._optimizer = optimizer
        self.params = {name: np.array(array) for name, array in params.items()}
        self._mean = {name: np.zeros_like(array) for name, array in self.params.items()}
        self._square = dict(self._mean)
        self._count = 0

    def update(self, gradient: Arrays) -> None:
        """Takes one step against a gradient.

        Args:
          gradient: of the value to minimise, for every parameter; of numpy or JAX.

        Raises:
          TrainingError: its names or shapes differ from those of the parameters, or it has a value
            that is complex, NaN, infinite or too large. The parameters are unchanged then.
        """
        slopes = {name: np.asarray(array) for name, array in gradient.items()}
        shapes = {name: array.shape for name, array in self.params.items()}
        found = {name: array.shape for name, array in slopes.items()}
        if found != shapes:
            raise TrainingError(f"a gradient has the shapes {found}, expected {shapes}")
        for name, slope in slopes.items():
            if slope.dtype.kind == "c":
                raise TrainingError(f"the gradient of {name!r} is {slope.dtype}, not real numbers")
            if wrong := slope.size - int(np.isfinite(slope).sum()):
                of = f"{wrong} of {slope.size} values of the gradient of {name!r}"
                raise TrainingError(f"{of} are NaN or infinite")
        given = self._optimizer
        norm = 0.0
        if given.max_norm:
            norm = float(sum((slope.astype(np.float64) ** 2).sum() for slope in slopes.values()))
        count, scale = self._count + 1, given.scale(norm**0.5)
        params, means, squares = {}, {}, {}
        for name, param in self.params.items():
            slope = slopes[name].astype(param.dtype) * scale
            params[name], means[name], squares[name] = given.moved(
                count, param, self._mean[name], self._square[name], slope, np.sqrt
            )
            square = squares[name]
            # With an infinite square the parameter would never change again.
            if not (np.isfinite(square).all() and np.isfinite(params[name]).all()):
                largest = np.abs(slope).max()
                raise TrainingError(
                    f"a gradient of {name!r} up to {largest:g} is too large for {param.dtype}"
                )
        self.params, self._mean, self._square, self._count = params, means, squares, count

    def save(self, state: SignalState) -> None:
        """Writes the whole state; to be called by the signal's ``save``."""
        kinds = zip(_KINDS, (self.params, self._mean, self._square), strict=True)
        arrays = {f"{k}/{name}": a for k, of in kinds for name, a in of.items()}
        state.put({**arrays, _COUNT: np.array(self._count)}, _FILE)

    def restore(self, state: SignalState) -> None:
        """Restores the state that ``save`` wrote; to be called by the signal's ``restore``.

        Raises:
          TrainingError: it is missing, damaged, or of other parameters.
        """
        found = state.get(_FILE)
        self._count = int(found.pop(_COUNT))
        wanted = {f"{k}/{n}": a.shape for k in _KINDS for n, a in self.params.items()}
        if {name: array.shape for name, array in found.items()} != wanted:
            where = state.location(f"{_FILE}.npz")
            raise TrainingError(
                f"{where} holds {sorted(found)}, which are not the parameters of this config: keep "
                "the options of the signal with which the run was started"
            )
        self.params, self._mean, self._square = (
            {name: found[f"{kind}/{name}"] for name in self.params} for kind in _KINDS
        )
