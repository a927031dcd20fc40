"""What storage behind a URL says about its files, without reading them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Where the libraries for different URLs say that a file is another one than before.
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "updated", "created")


def described(url: str) -> tuple[int, str]:
    """The size of a file, and a text that changes when it does; empty where the storage has none.

    Raises:
        OSError: there is no such file.
        ImportError: fsspec, or what it needs for such a URL, is not installed.
    """
    filesystem, path = _opened(url)
    return _facts(filesystem.info(path))


def files_in(url: str) -> Iterator[tuple[str, int, str]]:
    """The URLs of the files in a folder and in those inside of it, in their order, as `described` describes them.

    Raises:
        OSError: there is no such folder.
        ImportError: as in `described`.
    """
    filesystem, folder = _opened(url)
    found = filesystem.find(folder, detail=True)
    for path in sorted(found):
        inside = path[len(folder.rstrip("/")) + 1 :]
        yield url.rstrip("/") + "/" + inside, *_facts(found[path])


def _opened(url: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"reading {url} needs fsspec: pip install 'jaxexp[remote]'") from error
    return fsspec.core.url_to_fs(url)


def _facts(info: dict[str, Any]) -> tuple[int, str]:
    version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return int(info.get("size") or 0), version
