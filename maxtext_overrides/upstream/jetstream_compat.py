"""Makes google-jetstream 0.2.2 usable for MaxText 0.2.5 and quiet; import it before either.

Upstream symbols, each touched only where the feature is missing, never by version:

* ``jetstream.engine.tokenizer_pb2.TokenizerType``: absent in 0.2.2. MaxText's
  ``gcloud_stub.jetstream()`` imports it and silently falls back to stubs without it.
* ``jetstream.engine.engine_api.ResultTokens``: has no ``log_prob`` in 0.2.2; MaxEngine passes one.
* ``jetstream.engine.token_utils`` and ``jetstream.core.config_lib``: in 0.2.2 they import seqio and
  with it TensorFlow (8-10 s), which MaxEngine needs only to build a tokenizer. They are registered
  as modules that load at the first look at one of their attributes.
* ``jetstream.core.orchestrator``: sets the root logger to DEBUG and adds a stdout handler when it
  is imported; ``import_orchestrator`` keeps it from doing so.

Tested with google-jetstream 0.2.2 (May 2024). The commit that MaxText pins (29329e8e) has the first
two features, which are then left alone. Delete this module when that commit, or a later one, is on
PyPI.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import logging
import sys
import threading
import types
from types import ModuleType, SimpleNamespace
from typing import Any

_LAZY = ("jetstream.engine.token_utils", "jetstream.core.config_lib")
_lock = threading.RLock()


def _register_lazily(name: str) -> None:
    """Puts a module into ``sys.modules`` that runs its code at the first attribute access."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not installed: pip install google-jetstream")
    loader = spec.loader
    module = importlib.util.module_from_spec(spec)

    def load(attribute: str) -> Any:
        with _lock:
            if module.__dict__.pop("__getattr__", None) is not None:
                loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = load  # PEP 562: called for names the module lacks
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(importlib.import_module(parent), child, module)


class _TokenizerType:
    """Stands in for the protobuf enum that 0.2.2 lacks, with the numbers of later upstream code."""

    DEFAULT, tiktoken, sentencepiece, huggingface = range(4)
    DESCRIPTOR = SimpleNamespace(
        values_by_name={
            name: SimpleNamespace(number=number)
            for number, name in enumerate(("DEFAULT", "tiktoken", "sentencepiece", "huggingface"))
        }
    )


def _with_log_prob(base: type) -> type:
    """Returns ``ResultTokens`` with a ``log_prob`` leaf; the pytree stays a dataclass of flax."""
    from flax import struct

    namespace = {
        "__annotations__": {"log_prob": Any},
        "log_prob": struct.field(default=None),
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
    }
    extended = types.new_class(base.__name__, (base,), exec_body=lambda ns: ns.update(namespace))
    return struct.dataclass(extended)


def prepare() -> None:
    """Adds the features that the installed JetStream lacks; call it before importing MaxText.

    Further calls change nothing.

    Raises:
      ImportError: google-jetstream is not installed.
      RuntimeError: MaxText was imported first and has already chosen its stubs.
    """
    with _lock:
        loaded = sys.modules.get("maxtext.inference.maxengine.maxengine")
        if loaded is not None:
            if getattr(loaded.engine_api, "_IS_STUB", False):
                raise RuntimeError(
                    "maxtext.inference.maxengine was imported before maxtext_overrides."
                    "jetstream_compat.prepare() and uses stubs instead of JetStream"
                )
            return
        for name in _LAZY:
            _register_lazily(name)
        tokenizer_pb2: Any = importlib.import_module("jetstream.engine.tokenizer_pb2")
        if not hasattr(tokenizer_pb2, "TokenizerType"):
            tokenizer_pb2.TokenizerType = _TokenizerType
        engine_api: Any = importlib.import_module("jetstream.engine.engine_api")
        names = {field.name for field in dataclasses.fields(engine_api.ResultTokens)}
        if "log_prob" not in names:
            engine_api.ResultTokens = _with_log_prob(engine_api.ResultTokens)


def import_orchestrator() -> ModuleType:
    """Imports ``jetstream.core.orchestrator`` and keeps it from reconfiguring the root logger.

    Restoring the logger afterwards would be too late for messages that other threads log meanwhile:
    they would appear in the output of ``rlax serve``.
    """
    prepare()
    root: Any = logging.getLogger()
    with _lock:
        root.setLevel = root.addHandler = lambda given: None
        try:
            return importlib.import_module("jetstream.core.orchestrator")
        finally:
            del root.setLevel, root.addHandler
