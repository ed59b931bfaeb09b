"""The programs of the processes that a run starts besides the trainer."""
