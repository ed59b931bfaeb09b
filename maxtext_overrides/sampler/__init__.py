"""Generating with MaxText through its engine for JetStream."""
