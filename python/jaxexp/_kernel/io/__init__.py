"""Files, URLs, locks and threads.

`sources.py` reads parts of whatever holds bytes, `http.py` reads ranges from a server and finds the files in a folder
there, `remote.py` decides what goes to which server, `files.py` replaces files by rename, and `version.py` says which
version of a remote file is there.
"""
