"""Reporting of a run: metrics of each step, their files, Prometheus, trackers."""
