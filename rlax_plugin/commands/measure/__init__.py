"""``rlax measure``: the pass rate of every prompt, before or beside training."""
