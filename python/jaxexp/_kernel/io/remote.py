"""fsspec's file systems for URLs: what they send to whom, one kind of error for all that goes wrong there, and which
version of a file they have.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Mapping
from typing import Any

from jaxexp._errors import ChangedArtifactError, DeserializationError, ExportTypeError, cause, shown

from .files import is_url

_HTTP = ("http", "https")
_LONGEST = 200
# Headers that every server needs to know: none of them is a secret.
_FOR_EVERYONE = frozenset(("host", "accept", "accept-encoding", "connection", "range", "user-agent"))


class RefusedRedirectError(Exception):
    """A redirect that is not followed; the text says what the server does."""


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"reading {url} needs fsspec: pip install 'jaxexp[remote]'") from error
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url, **_guarded(url, options))
    except ImportError as error:  # as of a package for this kind of storage
        raise ImportError(f"reading {url} needs a package that is not installed: {error}") from error
    return found


def _guarded(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which each HTTP link of a URL, and of a URL in the options, has a session of `_session`."""
    if "headers_also_to" in options:
        raise ExportTypeError(
            "headers_also_to is gone: headers go to no other server. Open the URL that the server redirects to, with "
            "the headers for that one"
        )
    found = {key: _guarded("", value) if type(value) is dict else value for key, value in options.items()}
    for i, link in enumerate(url.split("::")):
        if (protocol := link.partition("://")[0]) in _HTTP:
            if i == 0:
                found = _with_session(found)
            else:
                found[protocol] = _with_session(found.get(protocol, {}))
    target = found.get("target_protocol") or str(found.get("fo")).partition("://")[0]
    for what, inner in (("target_options", target), ("remote_options", found.get("remote_protocol"))):
        if inner in _HTTP:
            found[what] = _with_session(found.get(what) or {})
    return found


def _with_session(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file system for HTTP; a user's own function goes on making the session."""
    from fsspec import config

    made = [one["get_client"] for one in (given, *(config.conf.get(name, {}) for name in _HTTP)) if "get_client" in one]
    return {**given, "get_client": functools.partial(_session, made[0]) if made else _session}


async def _session(make: Any = None, **options: Any) -> Any:
    """A session of aiohttp that sends what a user gave for one server to no other one, and decompresses nothing: few
    bytes could become many, also in a cache's file.
    """
    import aiohttp

    options = {"auto_decompress": False, **options}
    if make is None and "cookies" not in options:  # without those of servers, all cookies of a request are the user's
        options = {"cookie_jar": aiohttp.DummyCookieJar(), **options}
    session = aiohttp.ClientSession(**options) if make is None else await make(**options)
    session.headers["Accept-Encoding"] = "identity"
    guard = aiohttp.TraceConfig()
    guard.on_request_redirect.append(_check_redirect)
    guard.freeze()
    session.trace_configs.append(guard)
    return session


async def _check_redirect(session: Any, _: Any, redirect: Any) -> None:
    """Refuses to go to another server with what the user gave for this one; aiohttp keeps only passwords and cookies
    back. Errors do not show the query of a URL, which may have secrets.
    """
    import yarl

    answer = redirect.response
    place = answer.headers.get("Location") or answer.headers.get("URI") or ""
    target: Any = None
    is_elsewhere = True
    with contextlib.suppress(ValueError):
        target = answer.url.join(yarl.URL(place, encoded=not session.requote_redirect_url))
        is_elsewhere = _origin(target) != _origin(answer.url)
    if target is None or target.scheme not in _HTTP or not target.host:
        why = "is not an http URL"
    elif is_elsewhere and any(name.lower() not in _FOR_EVERYONE for name in answer.request_info.headers):
        why = "is on another server, and the headers, cookies or password are for this one: open that URL itself"
    else:
        return
    answer.close()
    raise RefusedRedirectError(f"redirects to {cut(place.partition('?')[0])!r}, which {why}")


def _origin(url: Any) -> tuple[str, str | None, int | None]:
    return url.scheme, url.raw_host, url.port


@contextlib.contextmanager
def failures(name: str) -> Generator[None]:
    """Turns the errors that the libraries for different URLs raise into one kind of error. It shows what a server says
    only escaped, also if Python prints what an error was raised from.
    """
    try:
        yield
    except (ImportError, MemoryError, DeserializationError, ExportTypeError):
        raise
    except Exception as error:
        refused = error.__cause__ or error  # fsspec says only that it did not find the file
        if isinstance(refused, RefusedRedirectError):
            raise OSError(shown(f"{name}: the server {refused}")) from None
        if not isinstance(error, OSError):
            said = f"{type(error).__name__}: {cut(error)}" if str(error) else type(error).__name__
            raise OSError(shown(f"{name}: {said}")) from cause(error)
        kind: type[OSError] = next(one for one in type(error).__mro__ if one.__module__ == "builtins")
        said = str(error)
        # Some libraries pass errors of the network on, which name nothing.
        is_named = error.filename is not None or any(shown(link) in shown(said) for link in name.split("::"))
        is_named |= isinstance(error, FileNotFoundError)  # with the path there
        if not is_named:
            raise kind(shown(f"{name}: {said or type(error).__name__}")) from cause(error)
        import traceback

        # Whether Python can print it, and those that it was raised from.
        if all(line.isprintable() for text in traceback.format_exception(error) for line in text.split("\n")):
            raise
        raise kind(shown(said)) from None


def cut(text: object) -> str:
    """What a server says, shortened to about a line or two."""
    said = str(text)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


# --- the version of a remote file, as its storage states it, without reading the file ---------------------------------


# Facts that change with a file, by the names that servers and fsspec use, without case and hyphens.
_NAMES = frozenset(
    "size etag mtime lastmodified modified modify updated generation versionid checksum contentmd5 md5 md5hash "
    "contenthash digest sha blobid ino".split()
)


class Version:
    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, str] = {}

    def check(self, facts: Mapping[str, str]) -> None:
        """Compares facts about the file with earlier ones (see `changed`), and remembers the new ones."""
        for what, said in facts.items():
            value = said.removeprefix("W/")  # servers that compress weaken the tag of some answers
            if (known := self._known.setdefault(what, value)) != value:
                raise self.changed(f"{what} {known}", f"{what} {value}")

    def changed(self, expected: str, found: str) -> ChangedArtifactError:
        """The error for a file that is no longer the one that was opened."""
        found += ": the file has changed since it was opened, so open it again"
        return ChangedArtifactError("", expected, found, file=self._name)


def described(url: str) -> tuple[int, str]:
    """The size of a file, and a text that changes when the file does."""
    with failures(url):
        filesystem, path = filesystem_of(url, {})
        filesystem.invalidate_cache(path)  # of listings, which may be old
        return of_info(filesystem.info(path))


def stamp(path: str) -> tuple[int, int | str]:
    """The size of a file, also behind a URL, and a value that differs after the file is written again."""
    if is_url(path):
        return described(path)
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def of_info(info: Mapping[str, Any]) -> tuple[int, str]:
    """What `described` returns, for the `info` of an fsspec file system."""
    facts = facts_of(info)
    said = "; ".join(f"{what} {facts[what]}" for what in sorted(facts) if what != "size")
    return int(info.get("size") or 0), said or os.urandom(16).hex()


def facts_of(told: Mapping[str, Any]) -> dict[str, str]:
    """What an answer's headers, or the `info` of an fsspec file system, say about the state of a file.

    A strong ETag is enough: dates change when the same bytes are uploaded again. Two states may share a weak one.
    """
    facts = {key: str(value) for key, value in told.items() if _plain(key) in _NAMES and value not in (None, "")}
    tag = next((key for key in facts if _plain(key) == "etag"), None)
    if tag is not None and not facts[tag].startswith("W/"):
        facts = {key: value for key, value in facts.items() if key in (tag, "size")}
    if set(facts) <= {"size"} and told.get("created") is not None:  # elsewhere it may be the time of a link
        facts["created"] = str(told["created"])
    return facts


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")
