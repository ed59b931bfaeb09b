"""``rlax curate``: the prompts that are worth training on, by their measured pass rates."""
