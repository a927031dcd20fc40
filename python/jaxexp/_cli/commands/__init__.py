"""The commands of `jaxexp`, one a file: each a click command named `command`."""
