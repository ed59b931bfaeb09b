"""Continuous batching inside a rollout engine: requests in slots, without JAX."""
