"""Reinforcement learning for large language models on the MaxText stack, as plug-ins.

Plug-ins import ``rlax_plugin.api`` and ``rlax_plugin.testing``. Importing this package imports
nothing, so that ``rlax --help`` answers at once.
"""

__version__ = "0.1.0"
