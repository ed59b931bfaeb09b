"""The workers of a run: who they are, what is asked of them, and checks of what they answer."""
