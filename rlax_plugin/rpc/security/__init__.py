"""Access control: roles, tokens, certificates, and their rotation."""
