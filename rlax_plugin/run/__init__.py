"""One run: the controller, its start, its state, evaluations and metrics."""
