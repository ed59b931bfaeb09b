"""``rlax status``: what a run does now, how fast, and what it waits for."""
