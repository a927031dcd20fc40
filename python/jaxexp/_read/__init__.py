"""From bytes to an `Exported`: one or many, from files or buffers, under a policy."""
