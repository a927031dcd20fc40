"""Files, sources of bytes, locks and threads. No JAX is imported here."""
