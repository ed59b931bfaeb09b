"""Batch signals: what a trainer adds to a batch, such as log-probs of other policies or values."""
