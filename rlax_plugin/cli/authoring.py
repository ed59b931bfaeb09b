"""Commands for authors of plug-ins: new-plugin, check-plugin."""
