"""Reporting of a run: metrics of each step, Prometheus, trackers and the dashboard."""
