"""Training from Python scripts and notebooks: ``rlax_plugin.train`` and ``rlax_plugin.open``."""
