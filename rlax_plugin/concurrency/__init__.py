"""What runs beside the main thread: threads, event loops, repeated attempts, the first failure."""
