"""Concurrent work: threads, event loops, retries, and the first failure of a run."""
