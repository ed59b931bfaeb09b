"""Types, errors, text, tokens, files and processes; it imports no other room."""
