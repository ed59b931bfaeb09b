"""What the command line calls, beside training and serving."""
