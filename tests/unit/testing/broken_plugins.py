"""Plug-ins that each break one promise, and the words that tell their author what to mend."""

from dataclasses import dataclass
from textwrap import dedent, indent

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

_TRACKER = """
class Tracker:
    def __init__(self, path):
        self.last = %(last)s
        self.file = path.open("%(mode)s", buffering=1)

    def log(self, step, metrics):
        %(first)s
        self.file.writelines(f"{step},{name},{value}\\n" for name, value in metrics.items())

    def close(self):
        self.file.close()


def build(context):
    return Tracker(context.run_dir / "log.csv")
"""


def _tracker(mode: str, *told: str, last: str = "0", first: str = "pass") -> Broken:
    return source_of("tracker", _TRACKER % {"mode": mode, "last": last, "first": first}, *told)


_ENGINE = """
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine


def build(context):
    store = context.part("weight_store", context.section.weights.store, "store")
    return Engine(ScriptedConfig(), store, context.section)


"""


def _engine(methods: str, *told: str) -> Broken:
    """A rollout engine whose class ``Engine`` is in ``methods``."""
    return source_of("rollout_engine", _ENGINE + dedent(methods), *told)


def _function(kind: str, body: str, *told: str, imports: str = "import jax.numpy as jnp") -> Broken:
    """A slot of an objective, ``slot(inputs)``."""
    inner = indent(dedent(body).strip(), "        ")
    part = (
        f"def build(context):\n    def slot(inputs):\n        {imports}\n{inner}\n    return slot\n"
    )
    return source_of(kind, part, *told)


FORMS = """
    from rlax_plugin.api import Extension, NoOptions, hookimpl

    class Best:
        def score_group(self, prompt, episodes):
            most = max(len(one.text) for one in episodes)
            return [float(len(one.text) == most) for one in episodes]

    @hookimpl
    def rlax_register_reward():
        return {"best": Extension(NoOptions, lambda config, context: Best())}
"""

BROKEN: dict[str, Broken] = {
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
        "the reward returned a text, and must return a number",
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
    "environment_with_another_question_each_time": source_of(
        "environment",
        """
        import numpy as np
        from rlax_plugin.api import Environment, Outcome

        class Asking(Environment):
            asked = 0

            def first(self, prompt):
                self.asked += 1
                return np.array([self.asked, 2])

            async def play(self, prompt, session):
                return Outcome()

        def build(context):
            return Asking()
        """,
        "[1, 2], then [2, 2]",
        "the first question, each time the same",
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
        """
        from pathlib import Path

        import numpy as np

        from rlax_plugin.api import WeightsError, WeightStore

        class Store(WeightStore):
            def save(self, path, arrays):
                Path(path).mkdir(parents=True)
                for name, array in arrays.items():
                    if array.dtype.hasobject:
                        raise WeightsError("objects")
                    (Path(path) / f"{name}.bin").write_bytes(array.tobytes())

            def load(self, path, like):
                try:
                    found = {p.stem: p.read_bytes() for p in Path(path).glob("*.bin")}
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
        """,
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
        "takes any metrics, step after step",
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
    "tracker_that_appends_blindly": _tracker(
        "a",
        "a run that is continued after a kill logs some steps again: they are there once",
        "log.csv holds check/zqxjkvbwfy 2 times, and held it 1 before",
        "leave out what the file has of a step",
    ),
    "tracker_that_begins_anew": _tracker(
        "w", "what an earlier process logged is gone", "open what is there"
    ),
    "tracker_that_drops_a_step_twice": _tracker(
        "a",
        "the first metrics of a step are on disk, the further ones are not",
        first="metrics, self.last = ({} if step == self.last else metrics), step",
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
        # And decode keeps the stop token: all are told.
        "leave out stop_ids and padding in decode",
    ),
    "source_that_encodes_floats": source_of(
        "prompt_source",
        """
        from rlax_plugin.testing.task import Numbers, NumbersConfig

        class Source(Numbers):
            def encode(self, text):
                return [float(token) for token in super().encode(text)]

        def build(context):
            return Source(NumbersConfig(count=3))
        """,
        "encode gives the tokens of a prompt's text",
        "a list of whole numbers",
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
    "signal_that_changes_batches": source_of(
        "signal",
        _SIGNAL % {"returns": "zeros", "spoils": "batch['rl_rewards'][0, 5:] += 1"},
        "output array is read-only",
        "work on copies",
    ),
    "signal_that_reads_padding": source_of(
        "signal",
        _SIGNAL
        % {
            "returns": "zeros + model.forward(batch, 'logprobs')['logprobs'].mean()",
            "spoils": "pass",
        },
        "rl_values of signal 'tried' is NaN or infinite at",
        "only where rl_group is above 0",
    ),
    "observer_that_answers": Broken(
        _HEAD + "\n\n@hookimpl\ndef rlax_on_step_end(step, metrics):\n    return metrics\n",
        ("rlax_on_step_end", "it returned {", "return nothing"),
    ),
    "engine_without_seeds": _engine(
        """
        import random
        from dataclasses import replace

        class Engine(ScriptedEngine):
            async def generate(self, requests, on_reply):
                def told(key, samples):
                    on_reply(key, [replace(s, seed=seed) for s, seed in zip(samples, seeds[key])])

                seeds = {r.key: r.seeds for r in requests}
                generated = [
                    replace(r, seeds=tuple(random.getrandbits(63) for _ in r.seeds))
                    for r in requests
                ]
                await super().generate(generated, told)

        """,
        "a seed decides a sample's tokens",
        "make the random key from the request's seed",
    ),
    "engine_that_trusts": _engine(
        """
        from dataclasses import replace

        class Engine(ScriptedEngine):
            async def load(self, version):
                published = {name: spec.fingerprint for name, spec in version.tensors.items()}
                return replace(await super().load(version), fingerprints=lambda: published)

        """,
        "weights with another fingerprint than published were loaded",
        "let load return rlax_plugin.api.read_weights",
    ),
    "mean_instead_of_sum": _function(
        "aggregation",
        "return inputs.mask_bt / inputs.mask_bt.sum().clip(1), jnp.ones(())",
        "uneven micro-batches add up to the whole",
        "do not divide by it: the trainer divides once",
    ),
    "mask_ignored": _function(
        "aggregation",
        "return jnp.ones_like(inputs.mask_bt), jnp.asarray(1.0 * inputs.mask_bt.size)",
        "the total is 48 where nothing trains",
        "the total counting what trains",
    ),
    "rows_instead_of_sequences": _function(
        "aggregation",
        """
        length_b1 = inputs.mask_bt.sum(axis=1, keepdims=True)
        return inputs.mask_bt / length_b1.clip(1), inputs.sequence_count()
        """,
        "several samples packed into a row",
        "a row may hold several",
    ),
    "importance_weight_with_a_gradient": _function(
        "importance_weight",
        "return jnp.exp(inputs.logprobs_bt - jax.lax.stop_gradient(inputs.logprobs_bt))",
        "its derivative is not that of its value",
        "belongs into rlax_register_gradient_term",
        imports="import jax, jax.numpy as jnp",
    ),
    "log_prob_as_importance_weight": _function(
        "importance_weight", "return inputs.logprobs_bt", "never negative", "a factor is -"
    ),
    "term_without_a_gradient": _function(
        "gradient_term",
        "return jax.lax.stop_gradient(inputs.ratio_bt)",
        "no token has a gradient",
        "without stop_gradient",
        imports="import jax",
    ),
    "term_that_cannot_be_traced": _function(
        "gradient_term",
        "return inputs.ratio_bt if inputs.advantages_bt.sum() > 0 else inputs.logprobs_bt",
        "JAX can trace it",
        "jax.numpy.where in place of if",
    ),
    "unbounded_ratio": _function(
        "gradient_term",
        "return jnp.exp(2 * inputs.log_ratio_bt)",
        "also with policies 60 nats apart",
        "rlax_plugin.api.ratio_of",
    ),
    "advantage_of_equal_rewards": source_of(
        "advantage",
        """
        def build(context):
            def advantage(rewards_g, lengths_g):
                return (rewards_g - rewards_g.mean()) / (rewards_g.std() + 1e-16)

            def slot(outcomes):
                import numpy as np

                result = np.zeros_like(outcomes.rewards_n)
                for group in np.unique(outcomes.group_n):
                    members = outcomes.group_n == group
                    result[members] = advantage(outcomes.rewards_n[members], None)
                return result

            return slot
        """,
        "equal rewards that it compares get exactly 0",
        "rlax_plugin.api.per_group",
    ),
    "preset_with_an_unknown_slot": source_of(
        "objective",
        """
        from rlax_plugin.api import Choice
        from rlax_plugin.training.objective.presets import Preset

        def build(context):
            slots = {"aggregation": "token_maen", "advantage": "gae", "grad_1": "log_prob"}
            return Preset(**{slot: Choice(name=name) for slot, name in slots.items()})
        """,
        "did you mean 'token_mean'?",
        "with names that a loaded plug-in offers",
    ),
}
