"""A trainer over several hosts: host 0 leads, and the others follow its orders."""
