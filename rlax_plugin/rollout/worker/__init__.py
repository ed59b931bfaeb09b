"""A rollout worker: one process that serves completions and pulls weights."""
