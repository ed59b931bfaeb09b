"""The contract of each kind of part, as code: one module per kind, or for a few similar kinds."""
