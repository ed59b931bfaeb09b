"""Scores completions in separate processes."""
