"""Ten tasks in Harbor's public format, solved and not solved, and the tasks that are refused."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rlax_tools.environment import Tools, ToolsConfig
from rlax_tools.harbor import HarborConfig, HarborSource
from sections import section_with
from small_tokenizers import byte_level
from tool_episodes import TEMPLATE, call, played

from rlax_plugin.api import ConfigError, Ending, Outcome, RlaxError, sandbox_layers

needs_layers = pytest.mark.skipif(bool(sandbox_layers().missing), reason="layers are missing")
CLOSED = '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 256\nstorage_mb = 16\n'
QUICK = "[verifier]\ntimeout_sec = 20\n"
PASSES = "if {} ; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"

# name -> instruction, files of environment/, what judges it, a command that solves it
TASKS: dict[str, tuple[str, dict[str, str], str, str]] = {
    "hello": (
        "Write Hello into /app/hello.txt.",
        {},
        PASSES.format("grep -qx Hello hello.txt"),
        "echo Hello > /app/hello.txt",
    ),
    "sum": (
        "Add the numbers of numbers.txt into sum.txt.",
        {"numbers.txt": "3\n4\n5\n"},
        PASSES.format('[ "$(cat sum.txt)" = 12 ]'),
        "paste -sd+ numbers.txt | bash -c 'read e; echo $((e))' > sum.txt",
    ),
    "sort": (
        "Sort words.txt in place.",
        {"words.txt": "b\nc\na\n"},
        PASSES.format('[ "$(tr -d "\\n" < words.txt)" = abc ]'),
        "sort -o words.txt words.txt",
    ),
    "bug": (
        "add of calc.py is wrong.",
        {"calc.py": "def add(a, b):\n    return a - b\n"},
        PASSES.format('[ "$(python -c "import calc; print(calc.add(2, 3))")" = 5 ]'),
        "sed -i s/-/+/ calc.py",
    ),
    "json": (
        "Write the object with the key a and the value 1 into o.json.",
        {},
        PASSES.format("python /tests/judge.py"),
        "echo '{\"a\": 1}' > o.json",
    ),
    "rename": (
        "Rename every .txt to .md.",
        {"a.txt": "1", "d/b.txt": "2"},
        PASSES.format("[ -f a.md ] && [ -f d/b.md ] && [ ! -e a.txt ] && [ ! -e d/b.txt ]"),
        "mv a.txt a.md; mv d/b.txt d/b.md",
    ),
    "share": (
        "Write 1 into a and 2 into b.",
        {},
        'echo "{\\"reward\\": $(cat a b 2>/dev/null | grep -c .), \\"files\\": '
        '$(ls | wc -l)}" > /logs/verifier/reward.json',
        "echo 1 > a; echo 2 > b",
    ),
    "program": (
        "Write an executable ./double that doubles its argument.",
        {},
        PASSES.format('[ "$(./double 21)" = 42 ]'),
        "printf '#!/bin/bash\\necho $((2 * $1))\\n' > double; chmod +x double",
    ),
    "greeting": (
        "Write the greeting of the variable GREETING into out.",
        {},
        PASSES.format('[ "$(cat out)" = "$WANTED" ]'),
        'echo "$GREETING" > out',
    ),
    "separate": (
        "Write yes into /app/out/a.txt; only /app/out counts.",
        {},
        PASSES.format("grep -qx yes out/a.txt && [ ! -e other ]"),
        "mkdir out; echo yes > out/a.txt; touch other",
    ),
}
HEADS = {
    "greeting": CLOSED
    + '[environment.env]\nGREETING = "hi"\n[verifier]\ntimeout_sec = 20\n'
    + '[verifier.env]\nWANTED = "hi"\n',
    "separate": 'artifacts = ["/app/out"]\n'
    + CLOSED
    + '[verifier]\ntimeout_sec = 20\nenvironment_mode = "separate"\n',
}
JUDGE = 'import json\nassert json.load(open("o.json")) == {"a": 1}\n'


def write(directory: Path, name: str, head: str | None = None) -> Path:
    instruction, files, test, _ = TASKS[name]
    task = directory / name
    (task / "tests").mkdir(parents=True)
    head = HEADS.get(name, CLOSED + QUICK) if head is None else head
    (task / "task.toml").write_text(f'schema_version = "1.4"\n{head}')
    (task / "instruction.md").write_text(f"{instruction}\n")
    (task / "tests/test.sh").write_text(f"#!/bin/bash\n{test}\n")
    (task / "tests/judge.py").write_text(JUDGE)
    for path, content in files.items():
        (task / "environment" / path).parent.mkdir(parents=True, exist_ok=True)
        (task / "environment" / path).write_text(content)
    return task


def source(directory: Path, tasks: Path, **changes: Any) -> HarborSource:
    files = byte_level(directory / "model", template=TEMPLATE)
    maxtext = {"tokenizer_path": str(files), "tokenizer_type": "huggingface"}
    context: Any = SimpleNamespace(section=section_with(**changes), maxtext=maxtext)
    return HarborSource(HarborConfig(path=str(tasks)), context)


@contextmanager
def player(directory: Path, tasks: Path) -> Iterator[Callable[..., Outcome]]:
    """A function that has the policy run commands for a task, and returns the outcome."""
    found = source(directory, tasks)
    sizes = {"max_prompt_tokens": 8000, "max_new_tokens": 900}
    limits = {"max_turns": 4, "max_tokens": 8000}
    section = section_with(environment={"name": "tools"}, rollouts=sizes, episodes=limits)
    run: Any = SimpleNamespace(section=section, part=lambda *_: found, functions={})
    tools = Tools(ToolsConfig.model_validate({"shell": True}), run)
    prompts = {one.metadata["task"].partition("/")[2]: one for one in found.prompts("train")}

    def outcome(name: str, *commands: str) -> Outcome:
        answers = [*(call("shell", command=one) for one in commands), "done"]
        return played(tools, run, answers, prompt=prompts[name], close=False)[0]

    try:
        yield outcome
    finally:
        asyncio.run(tools.close())


@pytest.mark.slow
@needs_layers
def test_ten_tasks_pay_what_their_tests_say(tmp_path: Path) -> None:
    for name in TASKS:
        write(tmp_path / "tasks", name)
    paid = {}
    with player(tmp_path, tmp_path / "tasks") as outcome:
        for name, (*_, solution) in TASKS.items():
            solved, idle = outcome(name, solution), outcome(name)
            paid[name] = solved.reward, idle.reward
            assert solved.ending is None and solved.metrics["tool_calls"] == 1
            if name == "share":
                assert solved.metrics["harbor_files"] == 2 and idle.metrics["harbor_files"] == 0
    assert paid == {name: (2.0 if name == "share" else 1.0, 0.0) for name in TASKS}
    assert len(paid) == 10


@needs_layers
def test_what_the_policy_leaves_elsewhere_does_not_judge(tmp_path: Path) -> None:
    write(tmp_path / "tasks", "hello")
    write(tmp_path / "tasks", "bug", CLOSED + "[verifier]\ntimeout_sec = 2\n")
    forged = (
        "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; "
        "printf '#!/bin/bash\\necho 1 > /logs/verifier/reward.txt\\n' > /tests/test.sh; "
        "chmod +x /tests/test.sh; rm -rf /tmp/app; ln -s /tests /tmp/app; (sleep 100 &)"
    )
    with player(tmp_path, tmp_path / "tasks") as outcome:
        assert outcome("hello", forged).reward == 0
        assert outcome("hello", "[ -z $(ls /tests) ] && echo Hello > hello.txt").reward == 1
        hangs = outcome("bug", "echo 'while True: pass' > calc.py")
        assert (hangs.reward, hangs.ending) == (0, Ending.OVER_TIME)
        large = outcome("hello", "head -c 3000000 /dev/zero > /app/x")
        assert large.reward == 0 and large.ending is not None and large.ending.by_reward
        (tmp_path / "tasks/hello/tests/test.sh").write_text("#!/bin/bash\nexit 0\n")
        with pytest.raises(RlaxError, match="task 'hello' was changed since the run began"):
            outcome("hello")


@needs_layers
def test_a_test_may_print_and_log_much_and_name_a_metric_as_it_likes(tmp_path: Path) -> None:
    task = write(tmp_path / "tasks", "hello")
    (task / "tests/test.sh").write_text(
        "#!/bin/bash\nhead -c 3000000 /dev/zero; head -c 3000000 /dev/zero > /logs/verifier/log\n"
        'echo \'{"reward": 0.5, "a/b": 1, "files": 2}\' > /logs/verifier/reward.json\n'
    )
    with player(tmp_path, tmp_path / "tasks") as outcome:
        judged = outcome("hello")
    assert (judged.reward, judged.ending) == (0.5, None)
    assert [name for name in judged.metrics if name.startswith("harbor_")] == ["harbor_files"]


@pytest.mark.parametrize(
    ("head", "file", "reason"),
    [
        (QUICK, "", 'needs a network: only [environment] network_mode = "no-network" is'),
        (CLOSED + 'docker_image = "ubuntu:24.04"\n', "", "needs the image 'ubuntu:24.04'"),
        (CLOSED, "environment/Dockerfile", "needs an image, which environment/Dockerfile builds"),
        (CLOSED, "environment/docker-compose.yaml", "needs an image"),
        (
            CLOSED.replace("256", "2048"),
            "",
            "needs 2048 MiB of memory, and rlax.environment.sandbox.memory_mib is 1024",
        ),
        (CLOSED + 'workdir = "/seen/b"\n', "", "works in /seen/b, beside /seen/a of this machine"),
        (CLOSED + "gpus = 1\n", "", "task.toml, environment.gpus: Input should be 0"),
        (CLOSED + "[[steps]]\nname = 'a'\n", "", "task.toml, steps: Extra inputs are not permit"),
        (CLOSED + '[environment.env]\nA = "${A}"\n', "", "needs a variable of this machine for A"),
        (CLOSED + 'workdir = "/usr/a"\n', "", "works in /usr/a, which is the system's"),
        (CLOSED + 'workdir = "../a"\n', "", "names '../a', which is no plain absolute path"),
        ("not toml", "", "cannot be read"),
    ],
)
def test_tasks_that_cannot_be_played_are_refused_by_name(
    tmp_path: Path, head: str, file: str, reason: str
) -> None:
    task = write(tmp_path / "tasks", "sum", head)
    if file:
        (task / file).write_text("FROM ubuntu")
    with pytest.raises(ConfigError) as raised:
        environment = {"name": "tools", "sandbox": {"see": ["/seen/a"]}}
        source(tmp_path, tmp_path / "tasks", environment=environment).prompts("train")
    told = str(raised.value)
    assert (raised.value.key == "rlax.prompt_source.path" and f"task 'sum' {reason}" in told) or (
        reason.startswith("task.toml") and f"task 'sum' cannot be played here: {reason}" in told
    )


def test_a_verifier_without_time_and_links_are_refused(tmp_path: Path) -> None:
    task = write(tmp_path / "tasks", "sum", CLOSED)  # 600 s, unless it says otherwise
    with pytest.raises(ConfigError, match="48 s to the verifier of task 'sum': set at least 1500"):
        source(tmp_path, tmp_path / "tasks", deadlines={"episode_s": 120}).prompts("train")
    (task / "tests/link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="has tests/link, which is no file"):
        source(tmp_path / "b", tmp_path / "tasks").prompts("train")
    (task / "environment").rename(tmp_path / "elsewhere")
    (task / "environment").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="has environment, which is a link"):
        source(tmp_path / "c", tmp_path / "tasks").prompts("train")


def test_files_that_cannot_be_carried_are_refused_before_they_cost_an_answer(
    tmp_path: Path,
) -> None:
    task = write(tmp_path / "tasks", "sum", CLOSED + QUICK)
    (task / "environment/large").write_bytes(bytes(1 << 20))
    with pytest.raises(ConfigError, match=r"in environment/, which are carried to its tests"):
        source(tmp_path, tmp_path / "tasks").prompts("train")
    (task / "task.toml").write_text(HEADS["separate"])
    assert len(source(tmp_path / "b", tmp_path / "tasks").prompts("train")) == 1
