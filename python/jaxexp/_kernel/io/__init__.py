"""Files, URLs, locks and threads.

`sources.py` reads parts of whatever holds bytes, and finds the files in a folder on a server. `remote.py` decides what
goes to which server, and says which version of a file is there. `files.py` replaces files by rename.
"""
