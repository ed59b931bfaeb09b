"""Rollout engines that each break one promise; see broken_plugins.py."""

from __future__ import annotations

from broken_plugins import Broken, source_of

ENGINES: dict[str, Broken] = {
    "engine_without_seeds": source_of(
        "rollout_engine",
        """
        import random
        from dataclasses import replace

        from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine

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

        def build(context):
            store = context.part("weight_store", context.section.weights.store, "store")
            return Engine(ScriptedConfig(), store, context.section)
        """,
        "a seed decides a sample's tokens",
        "make the random key from the request's seed",
    ),
    "engine_that_cannot_be_asked_to_give_up": source_of(
        "rollout_engine",
        """
        from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine

        class Engine(ScriptedEngine):
            def give_up(self, unwanted):
                return super().give_up(unwanted, -1)

        def build(context):
            store = context.part("weight_store", context.section.weights.store, "store")
            return Engine(ScriptedConfig(), store, context.section)
        """,
        "optional abilities are implemented as they are called",
        "give_up(unwanted) is called as give_up(unwanted, oldest)",
    ),
    "engine_that_is_not_prepared": source_of(
        "rollout_engine",
        """
        from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine

        class Engine(ScriptedEngine):
            def prepare(self):
                return True

        def build(context):
            store = context.part("weight_store", context.section.weights.store, "store")
            return Engine(ScriptedConfig(), store, context.section)
        """,
        "prepare and close, if it has them, return",
        "can't be used in 'await' expression",
    ),
    "engine_that_trusts": source_of(
        "rollout_engine",
        """
        from dataclasses import replace

        from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine

        class Engine(ScriptedEngine):
            async def load(self, version):
                published = {name: spec.fingerprint for name, spec in version.tensors.items()}
                return replace(await super().load(version), fingerprints=lambda: published)

        def build(context):
            store = context.part("weight_store", context.section.weights.store, "store")
            return Engine(ScriptedConfig(), store, context.section)
        """,
        "weights with another fingerprint than published were loaded",
        "let load return rlax_plugin.api.read_weights",
    ),
}
