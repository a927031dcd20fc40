"""From an `Exported` to bytes, for the `jax.export` of today or for an older reader."""
