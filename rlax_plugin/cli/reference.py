"""Commands that teach the config: config, metrics."""
