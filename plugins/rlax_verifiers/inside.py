"""Runs an environment of verifiers 0.4 in the environment's own Python; imports nothing of ours.

``python inside.py list|serve SETTINGS``: SETTINGS is JSON with ``env``, that is ``[env]`` of
verifiers' own configs, ``most_tasks`` and ``allow_weak``. ``list`` prints the tasks. ``serve``
plays them: lines of JSON come on what was standard input, and go to what was standard output.
What the environment prints goes to standard error, and its programs cannot read what comes here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from typing import Any

_LONGEST = 1 << 24  # bytes of a line
_END_S, _MOST_END_S = 5.0, 20  # for episodes that are cancelled; and for the environment, too


def _listed(env: Any, most: int) -> Any:
    for task in itertools.islice(env.taskset, most):
        data = task.data
        prompt = data.prompt
        if not isinstance(prompt, str | None):
            prompt = [one.model_dump(mode="json", exclude_none=True) for one in prompt]
        yield {"key": task.key, "prompt": prompt, "system": data.system_prompt}


def _refusal(env: Any, allow_weak: bool) -> str:
    """Returns why the environment cannot be trained with; empty if it can."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import harness_class

    agents = agent_config_fields(env.config)
    for name, config in {"": env.config, **agents}.items():
        if config.retries.max_retries or any(rule.max_retries for rule in config.retries.rules):
            # The turns of a failed attempt would train with the reward of the next one.
            key = f"{name}.retries" if name else "retries"
            return f"rlax.prompt_source.env.{key} must be 0: the run plays failed episodes again"
    for name, harness in env.config.agent_harnesses().items():
        if (
            not allow_weak
            and agents[name].runtime.type == "subprocess"
            and harness_class(harness.id).EXECUTES_CODE
        ):
            return (
                f"the harness {harness.id!r} executes what the policy writes on this machine, "
                f"without a sandbox: set rlax.prompt_source.env.{name}.runtime, or "
                "rlax.prompt_source.allow_weak: true"
            )
    return ""


async def _play(env: Any, task: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from verifiers.v1 import EvalClientConfig, ModelContext

    # A client reads its key from a variable. Programs of verifiers get no variable with API_KEY.
    variable = f"RLAX_API_KEY_{asked['job']}"
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
    # A harness that finds no room for a further turn ends well; the call has the error.
    is_cut = trace.is_truncated or bool(trace.calls and trace.calls[-1].error)
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    ended = "cut" if is_cut else "done"
    return {"reward": trace.reward, "metrics": metrics, "ended": ended}


async def _serve(env: Any, most: int, jobs: Any, say: Any) -> None:
    tasks = list(itertools.islice(env.taskset, most))
    reader = asyncio.StreamReader(_LONGEST)
    loop, playing = asyncio.get_running_loop(), {}
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), jobs)

    async def one(asked: dict[str, Any]) -> None:
        try:
            say({"job": asked["job"], **await _play(env, tasks[asked["index"]], asked)})
        except Exception as error:  # noqa: BLE001  the other side tells it
            say({"job": asked["job"], "error": f"{type(error).__name__}: {error}"})

    async with env.serving():
        say({"ready": [task.key for task in tasks]})
        while line := await reader.readline():
            asked = json.loads(line)
            job = asked["job"]
            if not asked.get("cancel"):
                playing[job] = task = asyncio.create_task(one(asked))
                task.add_done_callback(lambda _, job=job: playing.pop(job))
            elif job in playing:
                playing[job].cancel()
        signal.alarm(_MOST_END_S)  # whoever has started this is gone: nobody else ends it
        for task in playing.values():
            task.cancel()
        if playing:
            await asyncio.wait(playing.values(), timeout=_END_S)


def main() -> None:
    out, jobs = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "rb", 0)
    os.dup2(2, 1)  # what the environment prints is no answer
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # its programs would inherit the jobs, which have the keys of episodes

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    settings = json.loads(sys.argv[2])
    env, most = load_environment(resolve_env_config(settings["env"])), settings["most_tasks"]
    if not env.taskset.bounded and not most:
        raise SystemExit("the taskset never ends: set rlax.prompt_source.most_tasks")
    if refusal := _refusal(env, settings["allow_weak"]):
        raise SystemExit(refusal)
    if sys.argv[1] == "list":
        for task in _listed(env, most or sys.maxsize):
            say(task)
        say({"listed": True})
    else:
        asyncio.run(_serve(env, most or sys.maxsize, jobs, say))


if __name__ == "__main__":
    main()
