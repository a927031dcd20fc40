"""What each release of JAX knows. No JAX is imported here."""
