"""Compiles the programs of a run for a slice of TPUs, on a machine without TPUs."""
