"""Batch signals: arrays that a trainer adds to a batch, such as other policies' log-probs."""
