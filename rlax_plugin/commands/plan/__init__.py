"""``rlax plan``: predicts the time of a step in other arrangements of the same work."""
