"""The workers of a run: membership, dispatch of requests, and checks of the replies."""
