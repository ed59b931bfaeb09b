"""What every test process and its children need; set before anything imports JAX or TensorFlow."""

from __future__ import annotations

import compileall
import gc
import os
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"

os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_COMPILATION_CACHE_DIR=str(CACHE / "jax"),
    # Programs run for milliseconds, which no optimisation of LLVM's repays.
    JAX_DISABLE_MOST_OPTIMIZATIONS="true",
    # Compiling a step takes seconds, so even quick compilations are worth keeping between runs.
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.2",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="0",
    # Part of the cache's key, and set by a trainer: its children would inherit another key or not.
    LIBTPU_INIT_ARGS="--xla_tpu_spmd_rng_bit_generator_unsafe=true",
    TF_CPP_MIN_LOG_LEVEL="3",
    TF_ENABLE_ONEDNN_OPTS="0",
    GRPC_VERBOSITY="ERROR",
    ABSL_MIN_LOG_LEVEL="2",
    MPLBACKEND="agg",
    NO_GCE_CHECK="true",  # Google's client libraries would look for a metadata server
    HF_HUB_OFFLINE="1",
)

# A machine that stalls for seconds is no failure of a test, and two runs try the same examples.
settings.register_profile(
    "rlax",
    deadline=None,
    derandomize=True,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rlax")


def pytest_configure(config: pytest.Config) -> None:
    # Where PYTHONDONTWRITEBYTECODE is set, as many container images do, each of the hundreds of
    # processes that tests start would compile what it imports of this project again.
    # Collecting starts none.
    if not config.option.collectonly and not hasattr(config, "workerinput"):
        for package in ("rlax_plugin", "plugins", "maxtext_overrides"):
            compileall.compile_dir(ROOT / package, quiet=2)


def pytest_sessionfinish() -> None:
    # A process of pytest-xdist is interrupted if it has not ended five seconds after its report,
    # and pytest collects garbage several times in them. In a process full of JAX that takes too
    # long on a slow machine: what is there by now need not be looked through.
    gc.freeze()
