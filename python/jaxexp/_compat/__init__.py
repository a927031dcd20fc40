"""Other releases of JAX, and jaxexp beside `jax.export`: who reads an artifact, migration, `install`."""
