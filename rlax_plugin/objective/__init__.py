"""What is optimised: inputs, losses, presets, advantages, diagnostics, training batches."""
