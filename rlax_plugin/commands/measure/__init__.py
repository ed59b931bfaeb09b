"""``rlax measure``: measures the pass rate of every prompt, before or during training."""
