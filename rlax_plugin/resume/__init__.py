"""The state of a run, its records beside the journal, and the way back to them on a resume."""
