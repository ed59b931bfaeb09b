"""Converts models of other libraries to MaxText: their architecture, tensors and tokenizers."""
