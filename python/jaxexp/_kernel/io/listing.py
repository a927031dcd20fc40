"""The files in a folder behind a URL. The pages of an HTTP server may name anything, and have no end."""

from __future__ import annotations

import html
import itertools
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

from . import http
from .remote import failures, filesystem_of
from .version import Version, of_info

# Of a folder and all that is in it.
_MOST_FOLDERS, _MOST_FILES, _MOST_LINKS, _MOST_BYTES = 10_000, 1_000_000, 2_000_000, 1 << 28
_DEEPEST = 32
_LINK = re.compile(r"""<a\s[^<>]*?\bhref\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


def files_in(url: str, recursive: bool = True) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """The URLs of the files in a folder, and with `recursive` in its subfolders, in order, each with what `described`
    returns; None instead if the listing does not describe the file.

    Raises:
        OSError: the folder cannot be read, or a server lists too much in it.
    """
    with failures(url):
        filesystem, folder = filesystem_of(url, {})
        filesystem.invalidate_cache()
        if (behind := _on_http(filesystem, folder)) is not None:
            found: dict[str, Any] = dict.fromkeys(_files_below(*behind, recursive))
        else:
            infos = filesystem.find(folder, maxdepth=None if recursive else 1, detail=True)
            found = {path[len(folder.rstrip("/")) + 1 :]: info for path, info in infos.items()}
    for path in sorted(found):
        info = found[path] or {}
        yield url.rstrip("/") + "/" + path, of_info(info) if info.get("size") is not None else None


def _on_http(filesystem: Any, folder: str) -> tuple[Any, str] | None:
    """The file system for HTTP, and the URL, of a folder that is on such a server, also behind a cache."""
    from fsspec.implementations.cached import CachingFileSystem
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(filesystem, (CachingFileSystem, DirFileSystem)):
        if isinstance(filesystem, DirFileSystem):
            folder = str(filesystem._join(folder))
        filesystem = filesystem.fs
    return (filesystem, folder) if http.is_http(filesystem) else None


def _files_below(filesystem: Any, url: str, recursive: bool) -> list[str]:
    """The paths of the files in a folder, from there: those to which the page of the folder has links, or with
    `recursive` the page of a folder inside. A page has only what is below its own URL.
    """
    root = url.rstrip("/") + "/"
    files: set[str] = set()
    folders, left, links = [""], _MOST_BYTES, itertools.count()
    known = set(folders)
    for folder in folders:  # which grow meanwhile
        try:
            page, _ = http.beginning(filesystem, root + folder, left + 1, Version(url))
        except FileNotFoundError:
            if not folder:
                raise
            continue
        if len(page) > left:
            raise http.server_error(url, _too_much(f"{_MOST_BYTES:,} bytes of pages"))
        left -= len(page)
        for name in _names(root + folder, page, links):
            path = folder + name
            if not path.endswith("/"):
                files.add(path)
            elif recursive and path not in known:
                known.add(path)
                folders.append(path)
            if path.count("/") > _DEEPEST:
                raise http.server_error(url, _too_much(f"{_DEEPEST} levels of folders"))
        for found, most, what in ((folders, _MOST_FOLDERS, "folders"), (files, _MOST_FILES, "files")):
            if len(found) > most:
                raise http.server_error(url, _too_much(f"{most:,} {what}"))
    return sorted(files)


def _too_much(what: str) -> str:
    return f"the server lists more than {what} in this folder, so it is not read: name folders or files inside of it"


def _names(folder: str, page: bytes, links: Iterator[int]) -> Iterator[str]:
    """What the links of a folder's page name in it, as parts of URLs. `links` counts those of all pages."""
    here = urllib.parse.urlsplit(folder)
    for found in _LINK.finditer(page.decode(errors="ignore")):
        if next(links) == _MOST_LINKS:
            raise http.server_error(folder, _too_much(f"{_MOST_LINKS:,} links"))
        link = html.unescape(next(filter(None, found.groups()), ""))
        try:
            there = urllib.parse.urlsplit(urllib.parse.urljoin(folder, link))
            is_below = _server(there) == _server(here) and there.path.startswith(here.path)
        except ValueError:  # no URL
            continue
        name = there.path[len(here.path) :]
        if is_below and name and not any(urllib.parse.unquote(part) in (".", "..") for part in name.split("/")):
            yield f"{name}?{there.query}" if there.query else name


def _server(url: urllib.parse.SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _PORTS.get(url.scheme)
