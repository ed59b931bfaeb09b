"""What plug-ins implement and how they are found: protocols, hooks, the plug-in manager."""
