"""``rlax eval``: evaluates a weight version or a checkpoint of a run, on its own workers."""
