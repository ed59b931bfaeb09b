"""Turns errors of the Rust library of tokenizers into one class of error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlax_plugin.base.text.harmless import one_line

_PANIC = "PanicException"  # each library written with pyo3 has its own, which cannot be imported


class LibraryError(ValueError):
    """``transformers`` or the Rust library below it rejects a file or a text, or panics."""


@contextmanager
def library_errors() -> Iterator[None]:
    """Turns everything that the library raises into ``LibraryError``.

    A panic in Rust is not an ``Exception``: it would pass all error handlers and end the process
    with a traceback.
    """
    try:
        yield
    except Exception as error:  # the Rust library raises this very class
        raise LibraryError(one_line(str(error))) from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise LibraryError(f"the library panics: {one_line(str(error))}") from error
