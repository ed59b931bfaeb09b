"""The state of a run, its snapshots and retention, and the recovery of both on a resume."""
