"""Archives: many artifacts in one file, each a few microseconds away."""
