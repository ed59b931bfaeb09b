"""``rlax eval``: measures a weight version or a checkpoint of a run, on workers of its own."""
