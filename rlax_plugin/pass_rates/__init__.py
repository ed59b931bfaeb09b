"""Pass rates of prompts: a statistical measurement of a policy that changes."""
