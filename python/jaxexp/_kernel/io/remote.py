"""fsspec's file systems for URLs, and one kind of error for all that goes wrong there."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Generator, Mapping
from typing import Any

from jaxexp._errors import DeserializationError, ExportTypeError, cause, shown

_HTTP = ("http", "https")
_LONGEST = 200


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the path there."""
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"reading {url} needs fsspec: pip install 'jaxexp[remote]'") from error
    found: tuple[Any, str] = fsspec.core.url_to_fs(url, **_guarded(url, options))
    return found


def _guarded(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which each http link of a URL goes through sessions of jaxexp."""
    found = _with_guarded_targets(options)
    for i, link in enumerate(url.split("::")):
        protocol = link.partition("://")[0]
        if protocol in _HTTP:
            if i == 0:
                found["get_client"] = _client(found)
            else:
                given = found.get(protocol, {})
                found[protocol] = {**given, "get_client": _client(given)}
    return found


def _with_guarded_targets(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same for file systems that others are made inside of, by options in place of links."""
    found = {key: _with_guarded_targets(value) if type(value) is dict else value for key, value in options.items()}
    target, remote = (found.get(f"{what}_options") or {} for what in ("target", "remote"))
    if isinstance(url := found.get("fo"), str) and "://" in url:
        found["target_options"] = _guarded(url, target)
    elif found.get("target_protocol") in _HTTP:
        found["target_options"] = {**target, "get_client": _client(target)}
    if found.get("remote_protocol") in _HTTP:
        found["remote_options"] = {**remote, "get_client": _client(remote)}
    return found


def _client(given: Mapping[str, Any]) -> Any:
    """What makes sessions; a user's own function makes what is inside of one."""
    from fsspec import config

    made = [one["get_client"] for one in (given, *(config.conf.get(name, {}) for name in _HTTP)) if "get_client" in one]
    return functools.partial(_session, made[0]) if made else _session


async def _session(make: Any = None, **options: Any) -> Any:
    from .session import open_session

    return await open_session(make, **options)


@contextlib.contextmanager
def failures(name: str) -> Generator[None]:
    """Turns the errors that the libraries for different URLs raise into one kind of error. It shows what a server says
    only escaped, also if Python prints what an error was raised from.
    """
    try:
        yield
    except (ImportError, MemoryError, DeserializationError, ExportTypeError):
        raise
    except OSError as error:
        if _is_printable(error):
            raise
        kind: type[OSError] = next(one for one in type(error).__mro__ if one.__module__ == "builtins")
        raise kind(shown(str(error))) from None
    except Exception as error:
        said = f"{type(error).__name__}: {cut(error)}" if str(error) else type(error).__name__
        raise OSError(shown(f"{name}: {said}")) from cause(error)


def cut(text: object) -> str:
    """What a server says, shortened to about a line or two."""
    said = str(text)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def _is_printable(error: BaseException) -> bool:
    """Whether Python can print an error, and those that it was raised from."""
    return all(line.isprintable() for text in traceback.format_exception(error) for line in text.split("\n"))
