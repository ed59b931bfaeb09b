"""The only code of this project that imports MaxText. Importing this package imports nothing."""
