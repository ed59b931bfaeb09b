"""The commands of the command line, except training and serving."""
