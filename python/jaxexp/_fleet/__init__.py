"""Many artifacts, wherever they are.

`places/` finds artifacts: in files, buffers, archives and behind URLs. `archive/` is the format that holds many in one
file. `passes/` verifies, describes or migrates all artifacts in files, folders, archives and behind URLs. `engine/`
runs a pass in worker processes, or on any executor, and keeps a journal.
"""
