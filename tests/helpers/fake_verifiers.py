"""A fake of the few names of verifiers 0.4 that ``inside.py`` uses; it plays without a model.

It shows what ``inside.py`` does with what an environment does. Whether verifiers is as the fake is,
only the test with the real package shows.
"""

from pathlib import Path

LOADERS = """
import asyncio, os, subprocess, sys
from types import SimpleNamespace as Some

TASKS = ("child", "error", "two", "cut", "odd", "hangs")

class Env:
    def __init__(self, config):
        agent = config["agent"]
        retries = Some(max_retries=agent.get("retries", {}).get("max_retries", 0), rules=[])
        runtime = Some(type=agent["runtime"]["type"])
        self.config = Some(retries=Some(max_retries=0, rules=[]))
        self.config.agents = {"agent": Some(retries=retries, runtime=runtime)}
        self.config.agent_harnesses = lambda: {"agent": Some(id=agent["harness"]["id"])}
        self.taskset = Tasks()

    def serving(self):
        return self

    async def __aenter__(self): ...

    async def __aexit__(self, *_): ...

    async def run_episode(self, task, context):
        trace = Some(reward=0.5, metrics={}, errors=[], calls=[], is_truncated=False)
        episode = Some(ok=True, errors=[], traces=[trace])
        if task.key == "child":
            read = subprocess.run([sys.executable, "-c", READS], capture_output=True, check=True)
            key = os.environ[context.client.api_key_var]
            shown = {n: v for n, v in os.environ.items() if "API_KEY" not in n.upper()}
            trace.metrics = {"read": len(read.stdout), "shown": int(key in shown.values())}
        elif task.key == "error":
            episode.ok, trace.errors = False, [Some(type="TaskError", message="a hook broke")]
        elif task.key == "two":
            episode.traces.append(trace)
        elif task.key == "cut":
            trace.calls = [Some(error=None), Some(error=Some(type="ProviderError"))]
        elif task.key == "odd":
            trace.metrics = {"odd": object()}
        else:
            program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            open("pid", "w").write(str(program.pid))
            open("began", "x").close()
            try:
                await asyncio.sleep(1000)
            finally:
                open("cancelled", "x").close()
        return episode

READS = "import sys; sys.stdout.write(sys.stdin.read())"

class Tasks:
    bounded = True

    def __iter__(self):
        return (Some(key=k, data=Some(prompt=k, system_prompt=None)) for k in TASKS)

load_environment = Env
resolve_env_config = dict
harness_class = lambda name: Some(EXECUTES_CODE=name == "bash")
"""
FILES = {
    "v1/__init__.py": "from types import SimpleNamespace\n"
    "EvalClientConfig = ModelContext = SimpleNamespace\n",
    "v1/configs/agent.py": "def agent_config_fields(config):\n    return config.agents\n",
    "v1/utils/loaders.py": LOADERS,
}


def write_fake_verifiers(directory: Path) -> None:
    """Writes the package ``verifiers`` into a directory, for ``PYTHONPATH``."""
    for name, content in FILES.items():
        path = directory / "verifiers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
