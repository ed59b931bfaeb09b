"""Brings the parts of a run, an evaluation, a measurement or a replay up, and closes them again."""
