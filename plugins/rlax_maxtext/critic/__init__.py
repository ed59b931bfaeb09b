"""Critics: signals that estimate values, with a model of their own or with a head on the policy."""
