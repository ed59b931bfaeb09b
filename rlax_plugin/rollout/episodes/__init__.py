"""Plays and scores episodes of one or several turns, starting from a prompt's first answers."""
