"""What each kind of part promises, as code: one module per kind, or per few that are alike."""
