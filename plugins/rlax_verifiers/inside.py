"""Runs an environment of verifiers 0.4 in the environment's own Python; imports nothing of ours.

``python inside.py CONFIG MOST``: CONFIG is the JSON of ``[env]`` of verifiers' own configs. Without
input it lists the tasks, at most MOST, and ends. Lines of JSON come on standard input, and go to
what was standard output; what the environment prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from typing import Any

_LONGEST = 1 << 24  # bytes of a line


def _listed(env: Any, most: int) -> Any:
    for task in itertools.islice(env.taskset, most):
        data = task.data
        prompt = data.prompt
        if not isinstance(prompt, str | None):
            prompt = [one.model_dump(mode="json", exclude_none=True) for one in prompt]
        yield {"key": task.key, "prompt": prompt, "system": data.system_prompt}


async def _play(env: Any, task: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from verifiers.v1 import EvalClientConfig, ModelContext

    variable = f"RLAX_KEY_{asked['job']}"  # a client reads its key from a variable
    os.environ[variable] = asked["api_key"]
    try:
        client = EvalClientConfig(base_url=asked["base_url"], api_key_var=variable)
        context = ModelContext(client=client, model=asked["model"])
        episode = await env.run_episode(task, context)
    finally:
        del os.environ[variable]
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok or len(episode.traces) != 1:
        told = [f"{error.type}: {error.message}" for error in errors]
        return {"error": "; ".join(told) or f"{len(episode.traces)} agents have played, not 1"}
    (trace,) = episode.traces
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "metrics": metrics}


async def _serve(env: Any, most: int, say: Any) -> None:
    tasks = list(itertools.islice(env.taskset, most))
    reader = asyncio.StreamReader(_LONGEST)
    loop, playing = asyncio.get_running_loop(), {}
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def one(asked: dict[str, Any]) -> None:
        try:
            said = await _play(env, tasks[asked["index"]], asked)
        except Exception as error:  # noqa: BLE001  the other side tells it
            said = {"error": f"{type(error).__name__}: {error}"}
        finally:
            del playing[asked["job"]]
        say({"job": asked["job"], **said})

    async with env.serving():
        say({"ready": [task.key for task in tasks]})
        while line := await reader.readline():
            asked = json.loads(line)
            if asked.get("cancel"):
                if asked["job"] in playing:
                    playing[asked["job"]].cancel()
            else:
                playing[asked["job"]] = asyncio.create_task(one(asked))


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints is no answer

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    env = load_environment(resolve_env_config(json.loads(sys.argv[2])))
    most = int(sys.argv[3])
    if not env.taskset.bounded and not most:
        raise SystemExit("the taskset never ends: set rlax.prompt_source.most_tasks")
    if sys.argv[1] == "list":
        for task in _listed(env, most or sys.maxsize):
            say(task)
        say({"listed": True})
    else:
        asyncio.run(_serve(env, most or sys.maxsize, say))


if __name__ == "__main__":
    main()
