"""What every test process and its children need; set before anything imports JAX or TensorFlow."""

import asyncio
import compileall
import gc
import inspect
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from examples import TIMES, examples
from hypothesis import HealthCheck, settings
from leftovers import Leftovers
from second_chance import SecondChance

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


COROUTINE_S = 240.0

LEFTOVERS = pytest.StashKey[Leftovers]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-chance", action="store_true", help="see second_chance.py")


def pytest_configure(config: pytest.Config) -> None:
    load_profile()
    if config.option.second_chance and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondChance())
    state = tempfile.TemporaryDirectory(prefix="rlax-state-")  # token files of servers
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    # Where PYTHONDONTWRITEBYTECODE is set, as many container images do, each of the hundreds of
    # processes that tests start would compile what it imports of this project again.
    if not (config.option.collectonly or hasattr(config, "workerinput")):
        for package in ("rlax_plugin", "plugins", "maxtext_overrides"):
            compileall.compile_dir(ROOT / package, quiet=2)


def load_profile() -> None:
    """A machine that stalls for seconds fails no test, and two runs try the same examples."""
    settings.register_profile(
        "rlax",
        deadline=None,
        derandomize=True,
        max_examples=examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("rlax")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is collected meanwhile, and what there is by then is not looked through again.

    These are millions of objects, of imported modules and of thousands of tests: looking through
    them again and again takes a third of the time of collecting tests, and a tenth of theirs.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the tests that may take longest come first: at the end one would run alone.

    A property test has as much more time as it has more examples. Its time must not end while
    others would do: hypothesis takes that for a failed example, and tries smaller ones for ever.
    """
    for item in items:
        if TIMES > 1 and item.get_closest_marker("property") is not None:
            item.add_marker(pytest.mark.timeout(TIMES * float(item.config.getini("timeout"))))

    def limit_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark is not None else 0.0

    longest_s: dict[Path, float] = {}
    for item in items:
        longest_s[item.path] = max(limit_s(item), longest_s.get(item.path, 0.0))
    items.sort(key=lambda item: -longest_s[item.path])


def pytest_sessionstart(session: pytest.Session) -> None:
    option = session.config.option
    distributes = getattr(option, "dist", "no") != "no" and not hasattr(
        session.config, "workerinput"
    )
    if option.collectonly or distributes:
        return  # here no tests run
    # Keeps gRPC's thread: nothing of a test that is collected later waits for its end. Without it,
    # collecting the last channel ends that thread, and waits for an operation that a test has left
    # behind: sometimes forever.
    from grpc.aio import init_grpc_aio  # here, because it reads the variables above

    init_grpc_aio()
    session.config.stash[LEFTOVERS] = leftovers = Leftovers()
    session.config.add_cleanup(leftovers.close)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on an event loop of its own, for a limited time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    asyncio.run(asyncio.wait_for(test, COROUTINE_S))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """A test that leaves something running or lying about fails, and is named."""
    ends_file = nextitem is None or nextitem.path != item.path

    def left() -> str:
        leftovers = item.config.stash[LEFTOVERS]
        return "\nleft: ".join(["", *leftovers.after(item.nodeid, ends_file=ends_file)])

    try:
        done = yield
    except BaseException as error:
        error.add_note(left())
        raise
    if said := left():
        pytest.fail(said, pytrace=False)
    return done


def pytest_sessionfinish() -> None:
    # A process of pytest-xdist is interrupted if it has not ended five seconds after its report,
    # and pytest collects garbage several times in them. In a process full of JAX that takes too
    # long on a slow machine: what is there by now need not be looked through.
    gc.freeze()
