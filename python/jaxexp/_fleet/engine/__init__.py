"""Passes in workers: work is cut into shares by bytes, which any executor runs.

A share is a list of items whose pickles are small. Results come back as JSON values, so that a journal can keep them.
When a worker dies, its shares are cut smaller, until the item that kills workers is alone. `engine.py` is what the
caller's process does, and `worker.py` what a worker does.
"""
