"""What an exported function is, as data: its fields, calling convention and shardings."""
