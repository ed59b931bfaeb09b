"""The tools shell and python, in a real sandbox: files stay, limits end what the policy starts."""

import asyncio
from pathlib import Path

import psutil
import pytest
from rlax_tools.environment import ToolsConfig, check_start
from rlax_tools.machine import Machine, SandboxConfig
from sections import section_with

from rlax_plugin.api import BuildContext, CallError, ConfigError, sandbox_layers

needs_layers = pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")
SMALL = SandboxConfig(memory_mib=256, space_mib=16)


async def ran(machine: Machine, name: str, text: str, limit_s: float = 60.0) -> str:
    tools = {tool.name: tool for tool in machine.tools(True, True)}
    return await tools[name].call({"command" if name == "shell" else "code": text}, limit_s)


@needs_layers
async def test_both_tools_share_the_files_of_an_episode() -> None:
    machine = Machine(SMALL, files={"app/a.txt": b"41"}, places=("app",), directory="/app")
    try:
        assert await ran(machine, "python", "print(int(open('/app/a.txt').read()) + 1)") == "42"
        assert await ran(machine, "shell", "echo 7 > b; echo no >&2; ls; exit 3") == (
            "no\na.txt\nb\n[exit code 3]"
        )
        assert await ran(machine, "shell", "true") == "[no output]"
        assert "ZeroDivisionError" in await ran(machine, "python", "1 / 0")
        assert await ran(machine, "shell", "echo 'a") != ""  # what bash says of it
        assert await machine.take(["app"]) == {"app/a.txt": b"41", "app/b": b"7\n"}
        with pytest.raises(CallError, match="the one argument is command, a text"):
            await machine.tools(True, False)[0].call({"command": 1}, 1.0)
    finally:
        await machine.close()


@needs_layers
async def test_what_hangs_or_needs_too_much_is_killed_and_the_next_call_goes_on() -> None:
    machine = Machine(SMALL)
    holder = psutil.Process()
    try:
        said = await ran(machine, "shell", "echo a; sleep 1000", 0.5)
        assert said == "a\n[killed: it took longer than 0.5 s]"
        assert "MemoryError" in await ran(machine, "python", "b'a' * (1 << 30)")
        said = await ran(machine, "shell", "yes", 2.0)
        assert len(said) > 1 << 20 and said.endswith("]")
        assert await ran(machine, "python", "print(2)") == "2"
        fork = "import os\nwhile True:\n  os.fork()"
        assert await ran(machine, "python", fork, 2.0)
        assert (await ran(machine, "shell", "echo on")).startswith("on")
    finally:
        await machine.close()
    await asyncio.sleep(0)
    assert not [one for one in holder.children(recursive=True) if one.name() in ("sleep", "yes")]


def test_a_machine_without_layers_is_refused_by_their_names(monkeypatch, tmp_path: Path) -> None:
    from rlax_tools import environment

    class Offer:
        def refusal(self) -> str:
            return "this machine lacks layers of the sandbox: landlock (no)"

    monkeypatch.setattr(environment, "sandbox_layers", Offer)
    context = BuildContext.outside_run(section_with())
    config = ToolsConfig.model_validate({"shell": True})
    with pytest.raises(ConfigError, match="lacks layers of the sandbox: landlock") as raised:
        check_start(config, context)
    assert raised.value.key == "rlax.environment.sandbox.allow_weak"
    weak = {"shell": True, "sandbox": {"allow_weak": True}}
    check_start(ToolsConfig.model_validate(weak), context)
    weak["sandbox"] = {"allow_weak": True, "see": ["/etc"]}
    with pytest.raises(ConfigError, match="would hide /etc/passwd") as raised:
        check_start(ToolsConfig.model_validate(weak), context)
    assert raised.value.key == "rlax.environment.sandbox.see"
