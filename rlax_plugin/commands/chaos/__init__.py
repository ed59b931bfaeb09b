"""``rlax chaos``: a run whose processes are killed and frozen at chosen events, and its verdict."""
