"""The commands of `jaxexp`, one file each: each a click command named `command`."""
