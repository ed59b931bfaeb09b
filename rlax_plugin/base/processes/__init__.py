"""Python processes that exchange lines of JSON with their parent, and limits for them."""
