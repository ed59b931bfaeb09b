"""Scoring completions in processes of their own."""
