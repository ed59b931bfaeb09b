"""Choosing prompts: by measured pass rates, without those of evaluations, in stages."""
