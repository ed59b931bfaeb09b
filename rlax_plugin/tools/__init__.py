"""The command line, its commands, and training from scripts and notebooks."""
