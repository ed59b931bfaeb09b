"""The records of a run, the state that follows from them, and its recovery."""
