"""Archives: many artifacts in one ZIP file with an index.

`Archive` opens one and finds members without reading the others. `ArchiveWriter` appends members, and stores equal modules
and weights once. `load.py` makes functions of many members at once, `verify.py` compares members with their digests.

What surprises: a writer never writes over what was complete. An append that fails leaves the archive as it was.
"""
