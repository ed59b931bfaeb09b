"""MaxText training with another loss."""
