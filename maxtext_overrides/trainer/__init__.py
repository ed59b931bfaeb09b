"""Runs MaxText's training with an RL loss."""
