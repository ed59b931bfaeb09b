"""Text for people: removes harmful characters, formats amounts, consoles and commands."""
