"""The options of the launcher ``ray``, wrong ones, and what its driver is told."""

import asyncio
import json
from pathlib import Path

import pytest
import rlax_ray.launcher as module
from pydantic import ValidationError
from rlax_ray.launcher import RayLauncher, _local_cpus, _plan
from rlax_ray.options import RayConfig
from waiting import eventually

from rlax_plugin.api import ConfigError


def of(**options) -> RayConfig:
    return RayConfig.model_validate(options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pools": [{"name": "a"}, {"name": "a"}]}, "two pools have the name a"),
        ({"pools": [{"min": 3, "max": 2}]}, "max = 2 must be at least min = 3"),
        ({"pools": [{"min": 0, "max": 2}]}, "at least one pool needs a min of at least 1"),
        ({"pools": [{"min": 0}]}, "max must be at least 1"),
        ({"pools": []}, "at least 1 item"),
        ({"pools": [{"name": "A b"}]}, "should match pattern"),
        ({"pools": [{"resources": {"memory": 1}}]}, "memory is a resource that Ray gives out"),
        ({"pools": [{"resources": {"GPU": -1}}]}, "greater than or equal to 0"),
        ({"pools": [{"rollouts": {"temperature": 0}}]}, "temperature"),
        ({"pools": [{"rollouts": {"engine": {"token_s": 1}}}]}, "engine"),
        ({"pools": [{"maxtext": {"learning_rate": 1}}]}, "learning_rate must be the run's"),
        ({"pools": [{"maxtext": {"hardware_x": 1}}]}, "hardware_x must be the run's"),
        ({"scale_waits": 1.0}, "less than 1"),
    ],
)
def test_wrong_options_are_errors_that_name_them(options, reason):
    with pytest.raises((ValidationError, ConfigError), match=reason):
        of(**options)


def test_a_cluster_of_others_needs_a_token(tmp_path):
    away = of(address="head:6379")
    with pytest.raises(ConfigError, match=r"token_file: must name the file with the token"):
        away.check({})
    with pytest.raises(ConfigError, match=r"must be a file that you can read"):
        away.check({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")})
    (token := tmp_path / "token").write_text("x")
    away.check({"RAY_AUTH_TOKEN_PATH": str(token)})
    of(address="head:6379", allow_unauthenticated=True).check({})
    of().check({})


def test_the_driver_gets_no_other_setting_of_ray_and_the_token_as_a_path(tmp_path):
    (token := tmp_path / "token").write_text("secret")
    environ = {
        "RAY_AUTH_TOKEN": "secret",
        "RAY_ADDRESS": "other:1",
        "HOME": "/home/me",
        "RAY_USE_TLS": "1",
    }
    given = of(address="head:6379", token_file=str(token)).environment(environ)
    assert given == {
        "HOME": "/home/me",
        "RAY_USE_TLS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


def test_a_cluster_of_its_own_listens_on_loopback():
    given = of().environment({"RAY_AUTH_TOKEN_PATH": "/other", "RAY_AUTH_MODE": "disabled"})
    assert given.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0"  # so Ray takes 127.0.0.1
    assert given == {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}


def test_pools_become_arguments_of_workers():
    options = {
        "min": 1,
        "max": 3,
        "resources": {"GPU": 1, "CPU": 4},
        "labels": {"zone": "b"},
        "rollouts": {"slots": 8, "engine": {"name": "scripted", "token_s": 0.5}},
        "maxtext": {"hardware": "gpu", "ici_tensor_parallelism": 2},
    }
    config = of(pools=[{"name": "big", **options}, {"name": "small", "min": 2}])
    plan = _plan(config.pools[0], "host:1")
    assert plan["arguments"] == [
        *("--controller", "host:1", "rlax.rollouts.slots=8"),
        'rlax.rollouts.engine={"name": "scripted", "token_s": 0.5}',
        *('hardware="gpu"', "ici_tensor_parallelism=2"),
    ]
    assert plan["needs"] == "1 GPU, 4 CPU, label zone = b"
    assert json.loads(json.dumps(plan)) == plan
    launcher = RayLauncher(config, 30.0)
    assert launcher.stop_s == 2 * config.stop_s + 60
    for text in ("it ended", "it ended again"):
        launcher._heard({"event": "failing", "worker": "a-0", "text": text}, Path("ray.log"))
    assert launcher.failing == {"a-0": "it ended again"}
    launcher._heard({"event": "failing", "worker": "a-0", "text": ""}, Path("ray.log"))
    assert launcher.failing == {}
    assert (config.workers, launcher.scaling.least, launcher.scaling.most) == (3, 3, 5)
    assert _local_cpus(config) == 3 * 4 + 2


DRIVER = """read -r plan; echo "$plan" >> plans
echo '{"event": "started", "incarnation": 7}'; exit 1"""


@pytest.mark.parametrize("works_s", [0.0, 600.0])
async def test_drivers_that_fail_in_a_row_end_the_run_and_each_knows_the_last_incarnation(
    tmp_path, monkeypatch, works_s
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_WORKS_S", works_s)
    monkeypatch.setattr(module, "python_command", lambda *args: ["sh", "-c", DRIVER])
    errors = []

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["message"]))
    launcher = RayLauncher(of(max_restarts=1), 30.0)
    await launcher.start("host:1", tmp_path, tmp_path / "token")
    try:
        await eventually(lambda: errors or launcher.restarts > 2)
    finally:
        await launcher.stop()
    assert [error[: error.index(":")] for error in errors] == (
        ["the driver of Ray ended 2 times in a row"] if works_s else []
    )
    plans = (tmp_path / "plans").read_text().splitlines()
    assert [json.loads(plan)["last_incarnation"] for plan in plans[:2]] == [0, 7]
