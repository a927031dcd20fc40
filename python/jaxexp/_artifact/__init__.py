"""What an artifact says of itself, read from its bytes. No JAX is imported here."""
