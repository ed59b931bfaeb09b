"""Converts text to tokens and back, by the tokenizer and chat template of the model."""
