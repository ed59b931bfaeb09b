"""The present activity of the processes of a run, and those that stand still."""
