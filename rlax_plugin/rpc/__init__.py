"""Messages and services generated from `rlax.proto` by `make proto`, and their transport."""
