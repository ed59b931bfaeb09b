"""Runs untrusted Python code, such as a model's, without danger to the run."""
