"""Prompts of data sets: columns that another process prepares once, read by index."""
