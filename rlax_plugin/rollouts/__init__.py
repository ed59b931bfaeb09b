"""Generation: requests, their dispatch to a fleet of workers, continuous batching."""
