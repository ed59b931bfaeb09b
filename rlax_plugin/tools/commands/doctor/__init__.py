"""``rlax doctor``: what of a run is stuck or slow, what will end that, and what to try."""
