"""The one place that knows all stages: prompts, rollouts, rewards, curation, staleness, batches."""
