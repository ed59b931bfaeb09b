"""Plug-in for code: the reward ``python_tests`` runs a completion against tests, in a sandbox."""

from __future__ import annotations

from rlax_code.reward import PythonTests, PythonTestsConfig
from rlax_plugin.api import (
    BuildContext,
    CheckResult,
    ConfigError,
    Extension,
    hookimpl,
    sandbox_layers,
)

_NAME = "python_tests"


def _build(config: PythonTestsConfig, context: BuildContext) -> PythonTests:
    return PythonTests(config)


def _check_start(config: PythonTestsConfig, context: BuildContext) -> None:
    """Checks the sandbox and the time limits before a run.

    Raises:
      ConfigError: the sandbox lacks a layer, or a completion's tests may take too long.
    """
    key, reward_s = _key(config, context), context.section.deadlines.reward_s
    if config.sample_s >= reward_s:
        raise ConfigError(
            f"{key}.sample_s",
            config.sample_s,
            f"must be below rlax.deadlines.reward_s, {reward_s:g}: what takes longer is unscored, "
            "and tests that have no time left should fail instead",
        )
    if config.test_s > config.sample_s:
        raise ConfigError(f"{key}.test_s", config.test_s, "must be at most sample_s")
    if not config.allow_weak and (refusal := sandbox_layers().refusal()):
        reason = f"{refusal}. Code that the model writes could do harm; true runs it anyway"
        raise ConfigError(f"{key}.allow_weak", False, reason)


def _check(config: PythonTestsConfig, context: BuildContext) -> CheckResult:
    offer = sandbox_layers()
    layers = [f"{name} ({how})" if how else name for name, how in offer.having.items()]
    says = {"sandbox": ", ".join(layers) or "no layer"}
    warnings = []
    if refusal := offer.refusal():
        says["missing"] = "; ".join(f"{name}: {why}" for name, why in offer.missing.items())
        warnings.append((f"{_key(config, context)}.allow_weak", f"is true, and {refusal}"))
    return CheckResult(says=says, warnings=warnings)


def _key(config: PythonTestsConfig, context: BuildContext) -> str:
    """Returns the key of the reward with these options, which do not tell their own position."""
    for number, choice in enumerate(context.section.rewards):
        if choice.plain_name == _NAME and PythonTestsConfig(**choice.options) == config:
            return f"rlax.rewards.{number}"
    return "rlax.rewards"


@hookimpl
def rlax_register_reward() -> dict[str, Extension]:
    return {_NAME: Extension(PythonTestsConfig, _build, check=_check, check_start=_check_start)}
