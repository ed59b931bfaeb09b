"""Prompts: reading and preparing them, and choosing among them."""
