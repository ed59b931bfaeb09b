"""A prompt source with chats of the toy's characters, and an engine that logs what it samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.api import BuildContext, Extension, hookimpl
from rlax_plugin.build import build_weight_store
from rlax_plugin.testing.engine import ScriptedConfig, ScriptedEngine
from rlax_plugin.testing.task import Numbers, NumbersConfig, encode


class Talks(Numbers):
    """A message is the first letter of its role and its text; the policy answers behind an A."""

    def encode_messages(self, messages: Any, after: Any, tools: Any = ()) -> list[int]:
        text = "".join(one["role"][0] + one["content"] for one in messages)
        return encode(text + "A").tolist()


class LoggedEngine(ScriptedEngine):
    """Writes each sample to a file of its process, with the context that it continues."""

    log: Path

    async def _generate(self, one: Any, *rest: Any) -> None:
        await super()._generate(one, *rest)
        with self.log.open("a") as file:
            for s in one.samples:
                sampled = s.sampled(one.request.sampling)
                row = {
                    "seed": sampled.seed,
                    "context": one.request.context.tolist(),
                    "tokens": sampled.tokens.tolist(),
                    "logprobs": np.asarray(sampled.logprobs, np.float32).tobytes().hex(),
                }
                print(json.dumps(row), file=file, flush=True)


def _engine(config: ScriptedConfig, context: BuildContext) -> LoggedEngine:
    engine = LoggedEngine(config, build_weight_store(context), context.section)
    engine.log = Path("sampled.jsonl")
    return engine


@hookimpl
def rlax_register_prompt_source() -> dict[str, Extension]:
    return {"talks": Extension(NumbersConfig, lambda config, context: Talks(config))}


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    return {"logged": Extension(ScriptedConfig, _engine)}
