"""Text that people read: made harmless, amounts with units, terminals, commands to paste."""
