"""Interfaces that plug-ins implement and the manager that loads them: protocols and hooks."""
