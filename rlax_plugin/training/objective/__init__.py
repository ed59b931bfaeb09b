"""The optimised objective: inputs, losses, presets, advantages, diagnostics, training batches."""
