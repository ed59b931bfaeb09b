"""Rollout engine ``vllm``: vLLM's server, in a process and an environment of its own."""

from __future__ import annotations

from rlax_plugin.api import BuildContext, CheckResult, Extension, RolloutEngine, hookimpl
from rlax_vllm.options import VllmConfig


def _build(config: VllmConfig, context: BuildContext) -> RolloutEngine:
    from rlax_vllm.engine import VllmEngine

    def make_model():
        from rlax_vllm.model import model_of  # imports MaxText

        return model_of(config, context)

    def make_arguments(model, directory: str) -> list[str]:
        from rlax_vllm.model import server_arguments

        return server_arguments(config, context, model, directory)

    return VllmEngine(config, context, make_model, make_arguments)


def _check(config: VllmConfig, context: BuildContext) -> CheckResult:
    from rlax_vllm.checking import check

    return check(config, context)


def _check_start(config: VllmConfig, context: BuildContext) -> CheckResult:
    from rlax_vllm.checking import check_start

    return check_start(config, context)


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    engine = Extension(VllmConfig, _build, _check, needs_model=True, check_start=_check_start)
    return {"vllm": engine}
