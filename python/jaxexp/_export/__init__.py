"""From a jitted function to an `Exported`: lowering, the VJP as a function, and `export` itself."""
