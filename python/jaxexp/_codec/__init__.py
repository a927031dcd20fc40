"""How single values cross into bytes: pytree nodes, dtypes, dict keys, and what the native codec is given."""
