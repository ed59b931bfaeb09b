"""Reinforcement learning for large language models on the MaxText stack, as plug-ins.

Importing this package imports neither JAX nor MaxText nor TensorFlow.
"""

from rlax_plugin.config import Choice, NoOptions, Section
from rlax_plugin.hookspecs import hookimpl
from rlax_plugin.protocols import BuildContext, Extension

__version__ = "0.1.0"
__all__ = ["BuildContext", "Choice", "Extension", "NoOptions", "Section", "hookimpl"]
