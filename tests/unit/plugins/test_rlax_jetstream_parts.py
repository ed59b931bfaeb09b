"""A part that the version in use has as well is neither read nor verified again."""

import dataclasses

import numpy as np
import pytest
from scripted_slots import ScriptedSlots, play

from rlax_plugin.base.errors import WeightsMismatchError
from rlax_plugin.base.types import Canary, TensorSpec, VersionPart, WeightVersion
from rlax_plugin.weights.verification import take_version


def canary(version):
    tokens = np.arange(7, dtype=np.int32)
    return Canary(tokens, (-version * tokens[1:]).astype(np.float32), 1e-4)


class TwoVariables(ScriptedSlots):
    """Notes what is laid out, and of what fingerprints are computed."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def variables_like(self):
        return {"w": np.zeros(2, np.float32), "v": np.zeros(2, np.float32)}

    def lay_out(self, arrays):
        self.calls.append(("lay out", sorted(arrays)))

    def convert(self, arrays):
        self.calls.append(("convert", sorted(arrays)))

    def fingerprints(self, arrays, made_by):
        self.calls.append(("fingerprint", sorted(arrays)))
        return made_by(arrays)


def test_a_part_in_use_is_not_read_again():
    def shared(number, base):
        parts = []
        for part, name, path in (("base", "v", base), ("adapter", "w", number)):
            specs = {name: TensorSpec((2,), "float32", path)}
            parts.append(VersionPart(part, str(path), specs))
        return WeightVersion(number, number, tuple(parts), canary(number))

    async def scenario(engine, slots):
        with pytest.raises(WeightsMismatchError):
            await take_version(engine, dataclasses.replace(shared(5, 3), canary=canary(4)))
        for number, base in ((6, 3), (7, 3), (8, 4)):
            await take_version(engine, shared(number, base))
            assert engine.version == number
        # What was rejected is read again; of 7 only the adapter.
        assert engine._store.loaded == ["3", "5", "3", "6", "7", "4", "8"]
        prints = [names for call, names in slots.calls if call == "fingerprint"]
        assert prints == [["v", "w"], ["v", "w"], ["w"], ["v", "w"]]
        assert engine._swaps.weights["v"].tolist() == [4, 4]

    play(scenario, TwoVariables())
