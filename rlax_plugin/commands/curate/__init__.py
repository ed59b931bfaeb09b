"""``rlax curate``: chooses prompts for training by their measured pass rates."""
