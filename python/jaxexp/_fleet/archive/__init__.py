"""Archives: many artifacts in one ZIP file with an index.

`Archive` opens one and finds members without reading the others. `ArchiveWriter` appends members, and stores equal
modules and weights once. `opened.py` has the open file, its index, and what is made of its members: functions and
weights. `verification.py` compares members with their digests.

What surprises: a writer never overwrites complete data. An append that fails leaves the archive as it was.
"""
