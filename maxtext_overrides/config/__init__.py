"""MaxText configs: loading, errors in plain words, memory."""
