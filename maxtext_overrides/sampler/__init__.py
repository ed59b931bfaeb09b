"""Generates with MaxText through its engine for JetStream."""
