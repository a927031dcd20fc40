"""Benchmarks of jaxexp beside jax.export: `make bench`, or `python -m bench --help`."""
