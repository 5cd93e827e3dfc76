"""One line of waiting cases, and the one-thread processes that answer them."""
