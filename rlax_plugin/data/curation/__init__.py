"""Choosing prompts: measured pass rates, evaluation sets left out, stages."""
