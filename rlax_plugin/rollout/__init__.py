"""Generates samples: the fleet, a worker, batching in its engine, and episodes."""
