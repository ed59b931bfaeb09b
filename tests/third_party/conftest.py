"""Packages of strangers: not part of the project's tests, but built, installed and run by them."""

collect_ignore_glob = ["*"]
