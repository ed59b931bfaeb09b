"""The records of a run: writing and reading them, without JAX and without processes."""
