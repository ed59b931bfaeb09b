"""A weight store that holds versions of a tiny engine's weights in memory."""

import jax
import numpy as np
from tiny_engine import VOCAB, random_weights

from rlax_plugin.base.types import Canary, TensorSpec
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.device_fingerprint import fingerprint


def loaded(slots, seed):
    """Weights where a weight store puts them."""
    like = slots.variables_like()
    return {n: jax.device_put(a, like[n].sharding) for n, a in random_weights(slots, seed).items()}


def prompt_of(length, seed=0):
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).astype(np.int32)


class Memory:
    """A weight store that holds versions by number."""

    def __init__(self):
        self.versions = []

    def add(self, weights, slots):
        slots.lay_out(laid_out := dict(weights))
        prints = slots.fingerprints(laid_out, fingerprint)
        tensors = {
            name: TensorSpec(tuple(a.shape), a.dtype.name, int(prints[name]))
            for name, a in weights.items()
        }
        tokens = prompt_of(len(self.versions) + 3)
        canary = Canary(tokens, slots.logprobs(weights, tokens), 1e-4)
        self.versions.append(weights)
        number = len(self.versions) - 1
        return make_version(number, str(number), tensors, canary)

    def load(self, path, like):
        return self.versions[int(path)]
