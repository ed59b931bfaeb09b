"""Scores completions and plays environments, in separate processes."""
