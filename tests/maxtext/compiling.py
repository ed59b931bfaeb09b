"""What JAX compiles during a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from jax import monitoring


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Names of what is compiled meanwhile, also what the persistent cache already holds."""
    found: list[str] = []

    def listen(name: str, seconds: float, **more: str | int) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            found.append(str(more.get("fun_name", name)))

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(listen)
