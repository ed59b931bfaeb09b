"""Declares and checks the parts of MaxText and JetStream that this project relies on."""
