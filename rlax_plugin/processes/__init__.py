"""Python processes that are asked with lines of JSON, and what limits them."""
