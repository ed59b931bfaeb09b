"""Opens ports and connections, and converts messages; nothing else does."""
