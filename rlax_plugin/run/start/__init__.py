"""Brings the parts of a run, an evaluation or a measurement up, and closes them again."""
