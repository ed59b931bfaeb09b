"""Plug-ins that each break one promise, and the words that tell their author what to mend."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

_HEAD = """
from rlax_plugin.api import Extension, NoOptions, Section, hookimpl


def offers(part):
    return {"broken": Extension(NoOptions, lambda config, context: part(context))}
"""


@dataclass(frozen=True)
class Broken:
    """The source of a module, and phrases of the message: what is expected, found, to be mended."""

    source: str
    told: tuple[str, ...]


def source_of(kind: str, part: str, *told: str) -> Broken:
    """A plug-in with one part; ``part`` defines ``build(context)``."""
    hook = f"\n\n@hookimpl\ndef rlax_register_{kind}():\n    return offers(build)\n"
    return Broken(_HEAD + dedent(part) + hook, (f"rlax_register_{kind}['broken']", *told))


_STORE = """
import json
from pathlib import Path

import numpy as np

from rlax_plugin.api import WeightsError, WeightStore


class Store(WeightStore):
    def save(self, path, arrays):
        folder = Path(path)
        if folder.exists():
            raise WeightsError("it exists")
        %(save)s

    def load(self, path, like):
        try:
            found = {p.stem: %(load)s for p in Path(path).glob("*.bin")}
            for name, a in like.items():
                found[name] = np.frombuffer(found[name], a.dtype).reshape(a.shape).copy()
        except (OSError, LookupError, ValueError) as error:
            raise WeightsError(str(error)) from error
        if found.keys() != like.keys() or not found:
            raise WeightsError("other names")
        return found

    def delete(self, path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def build(context):
    return Store()
"""

_SIGNAL = """
import numpy as np

from rlax_plugin.api import ADVANTAGE_INPUTS, BatchSignal


class Signal(BatchSignal):
    arrays = {"rl_values": ADVANTAGE_INPUTS["rl_values"]}
    seen = 0

    def complete(self, model, step, batch):
        zeros = np.zeros(batch["rl_mask"].shape)
        return {"rl_values": %(returns)s}

    def learn(self, model, step, batch):
        self.seen += 1
        %(spoils)s


def build(context):
    return Signal()
"""

BROKEN: dict[str, Broken] = {
    "hook_misspelt": Broken(
        _HEAD + "\n\n@hookimpl\ndef rlax_register_rewards():\n    return {}\n",
        ("unknown hook 'rlax_register_rewards'", "did you mean 'rlax_register_reward'?"),
    ),
    "class_instead_of_extension": Broken(
        _HEAD
        + "\n\nclass Reward:\n    pass\n\n\n"
        + "@hookimpl\ndef rlax_register_reward():\n    return {'broken': Reward}\n",
        ("rlax_register_reward['broken'] is <class", "expected an Extension(config_class, build)"),
    ),
    "state_not_restored": source_of(
        "sampler",
        """
        class InOrder:
            def __init__(self):
                self.next = 0

            def choose(self, prompts, rates, rng, count):
                first, self.next = self.next, self.next + count
                return [i % len(prompts) for i in range(first, self.next)]

            def state(self):
                return {"next": self.next}

            def restore(self, state):
                pass

        def build(context):
            return InOrder()
        """,
        "a new sampler that restores the state continues",
        "set all of it in restore()",
    ),
    "randomness_of_its_own": source_of(
        "sampler",
        """
        import random

        class Random:
            def choose(self, prompts, rates, rng, count):
                return [random.randrange(len(prompts)) for _ in range(count)]

            def state(self):
                return {}

            def restore(self, state):
                pass

        def build(context):
            return Random()
        """,
        "all randomness comes from rng",
        "sample from the rng that choose is given",
    ),
    "reward_of_text": source_of(
        "reward",
        """
        def build(context):
            return lambda prompt, completion: "1.0"
        """,
        "gets '1.0' (str)",
        "return a float",
    ),
    "reward_of_nan": source_of(
        "reward",
        """
        def build(context):
            return lambda prompt, completion: float("nan") if not completion else 1.0
        """,
        "the empty one, '', gets nan",
        "return a float",
    ),
    "reward_with_torch": source_of(
        "reward",
        """
        def build(context):
            def reward(prompt, completion):
                import torch  # noqa: F401

                return float(len(completion))

            return reward
        """,
        "torch was imported",
        "score with numpy or plain Python",
    ),
    "filter_of_bool": source_of(
        "filter",
        """
        class Filter:
            def reject(self, group):
                return bool(group.rewards.min() == group.rewards.max())

        def build(context):
            return Filter()
        """,
        "it returned False",
        "return None to accept a group",
        "never a bool",
    ),
    "filter_that_remembers": source_of(
        "filter",
        """
        class Filter:
            def __init__(self):
                self.seen = set()

            def reject(self, group):
                known = group.prompt.id in self.seen
                self.seen.add(group.prompt.id)
                return "asked before" if known else None

        def build(context):
            return Filter()
        """,
        "the same group gets the same answer",
        "mixed rewards: None, then 'asked before'",
        "judge by the group alone",
    ),
    "store_that_is_not_atomic": source_of(
        "weight_store",
        _STORE
        % {
            "save": "folder.mkdir(parents=True)\n"
            "        for name, array in arrays.items():\n"
            "            if array.dtype.hasobject:\n"
            "                raise WeightsError('objects')\n"
            "            (folder / f'{name}.bin').write_bytes(array.tobytes())",
            "load": "p.read_bytes()",
        },
        "a save that fails raises, and leaves nothing",
        "load of a, b after it raised nothing",
        "rename it when all is there",
        "keep a checksum",  # and damage is not found either
    ),
    "tracker_that_raises_on_nan": source_of(
        "tracker",
        """
        import json

        class Tracker:
            def log(self, step, metrics):
                json.dumps(metrics, allow_nan=False)

            def close(self):
                pass

        def build(context):
            return Tracker()
        """,
        "takes NaN and infinities",
        "ValueError: Out of range float values",
        "do not raise",
    ),
    "tracker_that_forgets": source_of(
        "tracker",
        """
        class Tracker:
            def __init__(self, path):
                self.file = path.open("w")

            def log(self, step, metrics):
                self.file.write(f"{step} {dict(metrics)}")

            def close(self):
                pass

        def build(context):
            return Tracker(context.run_dir / "log")
        """,
        "the first step is on disk, the last one is not",
        "flush and join in close",
    ),
    "source_with_salted_ids": source_of(
        "prompt_source",
        """
        import numpy as np

        from rlax_plugin.api import Prompt, PromptSource

        class Source(PromptSource):
            stop_ids = (1,)

            def prompts(self, split):
                texts = [f"{split} {i}" for i in range(3)]
                return [Prompt(str(hash(t)), np.array([2, 3], np.int32), t, t) for t in texts]

            def decode(self, tokens):
                return " ".join(map(str, tokens))

        def build(context):
            return Source()
        """,
        "another process gives others",
        "because hash() of a text differs",
        "an unknown split raises a ConfigError",  # and decode keeps the stop token: all are told
        "leave out stop_ids and padding in decode",
    ),
    "trainer_that_reuses_buffers": source_of(
        "trainer",
        """
        from rlax_plugin.api import Trainer as Base
        from rlax_plugin.testing import policy

        class Trainer(Base):
            def run(self, port):
                weights = policy.initial_weights(0)
                port.publish(0, weights)
                for step in (1, 2, 3):
                    port.next_batch(step)
                    weights["bias"] += 1
                    decision = port.decide(step)
                    port.before_checkpoint(step)
                    port.publish(step, weights)
                    port.step_done(step, {})
                    if decision.stop:
                        return

        def build(context):
            return Trainer()
        """,
        "publish(0): 'bias' was changed afterwards",
        "fresh buffers",
    ),
    "launcher_that_leaves_processes": source_of(
        "launcher",
        """
        import subprocess, sys
        from rlax_plugin.api import Launcher

        class Careless(Launcher):
            restarts = 0

            async def start(self, controller, run_dir, token_file):
                for _ in range(2):
                    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
                self.restarts = 1

            async def stop(self):
                pass

        def build(context):
            return Careless()
        """,
        "processes are left after stop",
        "end and await each in stop",
    ),
    "signal_that_forgets": source_of(
        "signal",
        _SIGNAL % {"returns": "zeros + self.seen", "spoils": "pass"},
        "rl_values of step 3 is not what it was without a restart",
        "save in save() whatever a later step depends on",
    ),
    "signal_that_adds_another_dtype": source_of(
        "signal",
        _SIGNAL % {"returns": "zeros.astype('f4')", "spoils": "pass"},
        "rl_values of signal 'tried' is float32[8, 16], expected float64[8, 16]",
        "the shape [rows, length, *trailing] and the dtype of its spec",
    ),
    "signal_that_changes_batches": source_of(
        "signal",
        _SIGNAL % {"returns": "zeros", "spoils": "batch['rl_rewards'][0, 5:] += 1"},
        "output array is read-only",
        "work on copies",
    ),
    "observer_that_answers": Broken(
        _HEAD + "\n\n@hookimpl\ndef rlax_on_step_end(step, metrics):\n    return metrics\n",
        ("rlax_on_step_end", "it returned {", "return nothing"),
    ),
}
