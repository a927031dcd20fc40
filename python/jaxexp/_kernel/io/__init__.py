"""Files, folders, URLs, locks and threads.

`sources.py` reads parts of whatever holds bytes, `http.py` reads ranges, `files.py` replaces files by rename, `version.py`
says whether a file has changed.
"""
