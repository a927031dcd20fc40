"""jaxexp and other releases: who reads an artifact, migration, `install`.

May import: jaxexp _read _write _exported _module _codec _function _releases _artifact.
"""
