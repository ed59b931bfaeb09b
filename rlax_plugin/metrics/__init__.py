"""What a run says of itself: metrics of a step, Prometheus, trackers, the dashboard."""
