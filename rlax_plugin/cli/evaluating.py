"""Commands that measure a policy: eval."""
