"""Messages and services of `rlax.proto`, generated; `make proto` regenerates them."""
