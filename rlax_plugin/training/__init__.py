"""The computations of the trainer: the objective, and signals that it adds to a batch."""
