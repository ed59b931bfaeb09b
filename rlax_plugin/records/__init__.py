"""What a run writes down about itself, and how it is read again. No JAX, no processes."""
