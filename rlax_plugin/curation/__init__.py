"""Choosing prompts before training: by measured pass rates, and without those of evaluations."""
