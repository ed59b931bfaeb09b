"""The display of a run in the terminal, and what it waits for."""
