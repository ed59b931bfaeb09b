"""Models of other libraries: their architecture, tensors and tokenizers, as MaxText has them."""
