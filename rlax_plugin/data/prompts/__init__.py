"""Prompts of datasets: columns that another process prepares once, read by index."""
