"""Sessions of HTTP, which all requests go through, also those of fsspec. A session sends a user's headers to no other
server after a redirect, and ends an answer that has much more than its content.

aiohttp alone sends all headers but three to whatever server a redirect names, and waits for ever for an answer after
others that are only interim (1xx), or for the end of a chunk's extension.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any

import aiohttp
import yarl
from multidict import CIMultiDict

from jaxexp._errors import ExportTypeError

# An answer's heads, with interim ones, and what is around the pieces of its content: so much, and an eighth of the
# content.
_OVERHEAD = 1 << 16
# Until the head is parsed, which may come with content.
_UNPARSED = 1 << 20
_TOO_MUCH = "sends far more than the content of an answer"
_MOST_REDIRECTS = 10
# What the request is for, which every server needs to know.
_FOR_EVERYONE = frozenset(("range", "accept-encoding"))


class RefusedAnswer(aiohttp.ClientError):
    """An answer that is not read to its end; its text says what the server does. aiohttp does not ask again."""


class Session:
    """What fsspec and jaxexp use of an `aiohttp.ClientSession`. Requests take the option `headers_also_to`, too: the
    origins that may have the user's headers, besides the one that they are for.
    """

    def __init__(self, inner: aiohttp.ClientSession, given: Mapping[str, Any]) -> None:
        self._inner = inner
        # aiohttp would send all of this everywhere: headers, a password, and cookies that belong to no server.
        self._headers = inner.headers.copy()
        inner.headers.clear()
        cookies = {cookie.key: cookie.value for cookie in inner.cookie_jar if not cookie["domain"]}
        inner.cookie_jar.clear(lambda cookie: not cookie["domain"])
        self._given: dict[str, Any] = {} if inner.auth is None else {"auth": inner.auth}
        inner._default_auth = None
        self._given.update(given)
        if cookies:
            self._given["cookies"] = {**cookies, **(given.get("cookies") or {})}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, url: Any, **options: Any) -> _Request:
        return self.request("GET", url, **options)

    def head(self, url: Any, **options: Any) -> _Request:
        return self.request("HEAD", url, **{"allow_redirects": False, **options})

    def request(self, method: str, url: Any, **options: Any) -> _Request:
        return _Request(self._request(method, yarl.URL(url), **{**self._given, **options}))

    async def _request(
        self,
        method: str,
        url: yarl.URL,
        *,
        headers: Any = None,
        headers_also_to: str | Iterable[str] = (),
        allow_redirects: bool = True,
        max_redirects: int = _MOST_REDIRECTS,
        **options: Any,
    ) -> aiohttp.ClientResponse:
        sent = CIMultiDict(self._headers)
        sent.update(headers or {})
        # Otherwise, few bytes could become many, also in a cache's file.
        sent["Accept-Encoding"] = "identity"
        options["auto_decompress"] = False
        allowed = {_origin(url), *origins(headers_also_to)}
        for _ in range(max_redirects + 1):
            answer = await self._inner.request(method, url, headers=sent, allow_redirects=False, **options)
            place = answer.headers.get("Location")
            if not allow_redirects or answer.status not in (301, 302, 303, 307, 308) or place is None:
                return answer
            answer.release()
            target = self._target(url, place)
            if _origin(target) not in allowed or (url.scheme, target.scheme) == ("https", "http"):
                allowed = set()  # whoever was not allowed to have them chooses the next server
                sent = CIMultiDict((name, value) for name, value in sent.items() if name.lower() in _FOR_EVERYONE)
                options = {key: value for key, value in options.items() if key not in ("auth", "cookies")}
            options.pop("params", None)  # they belong to the first URL
            url = target
        raise RefusedAnswer(f"redirects more than {max_redirects} times")

    def _target(self, url: yarl.URL, place: str) -> yarl.URL:
        """Where a redirect leads."""
        try:
            target = url.join(yarl.URL(place, encoded=not self._inner.requote_redirect_url))
            if target.scheme in ("http", "https") and target.host:
                same = _origin(target) == _origin(url) and target.user is None
                return target.with_user(url.user).with_password(url.password) if same else target
        except ValueError:
            pass
        raise RefusedAnswer(f"redirects to {place.partition('?')[0]!r}, which is no http URL")  # queries have secrets


class _Request:
    """The answer to a request, for ``await`` and for ``async with``."""

    def __init__(self, work: Awaitable[aiohttp.ClientResponse]) -> None:
        self._work = work
        self._answer: aiohttp.ClientResponse

    def __await__(self) -> Generator[Any, None, aiohttp.ClientResponse]:
        return self._work.__await__()

    async def __aenter__(self) -> aiohttp.ClientResponse:
        self._answer = await self._work
        return await self._answer.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        await self._answer.__aexit__(*raised)


async def open_session(make: Callable[..., Awaitable[aiohttp.ClientSession]] | None, **options: Any) -> Session:
    """A session with the options of aiohttp's; `make` makes that one, if the user wants to."""
    given: dict[str, Any] = {key: options.pop(key) for key in ("auth", "cookies") if key in options}
    options = {"response_class": _Answer, **options}
    return Session(aiohttp.ClientSession(**options) if make is None else await make(**options), given)


def origins(given: str | Iterable[str]) -> set[tuple[str, str | None, int | None]]:
    """The origins that a user names: texts such as ``https://cdn.example``.

    Raises:
        TypeError: one is something else.
    """
    found = set()
    for text in (given,) if isinstance(given, str) else given:
        url: yarl.URL | None = None
        try:
            url = yarl.URL(text)
            if url.scheme not in ("http", "https") or url != url.origin():
                url = None
        except (TypeError, ValueError):
            url = None
        if url is None:
            raise ExportTypeError(f"headers may also go to an origin, such as 'https://cdn.example', not to {text!r}")
        found.add(_origin(url))
    return found


def _origin(url: yarl.URL) -> tuple[str, str | None, int | None]:
    return url.scheme, url.raw_host, url.port


class _Answer(aiohttp.ClientResponse):
    """An answer whose bytes are counted, as they come from the connection."""

    async def start(self, connection: Any) -> Any:
        if (transport := connection.transport) is not None:
            meter = transport.get_protocol()
            if not isinstance(meter, _Meter):  # a new connection
                meter = _Meter(transport, meter)
                transport.set_protocol(meter)
            meter.begin(self)
        return await super().start(connection)


class _Meter(asyncio.Protocol):
    """Stands between a connection and aiohttp, and ends an answer that is too long without its content."""

    def __init__(self, transport: Any, inner: Any) -> None:
        self._transport, self._inner = transport, inner
        self._answer: Callable[[], _Answer | None]
        self._received = 0
        self._failed = False

    def begin(self, answer: _Answer) -> None:
        self._answer = weakref.ref(answer)
        self._received = 0

    def data_received(self, data: bytes) -> None:
        if self._failed:
            return
        self._received += len(data)
        self._inner.data_received(data)
        content = self._content()
        most = _UNPARSED if content is None else _OVERHEAD + content.total_bytes * 9 // 8
        if self._received > most:
            self._failed = True
            self._fail(_TOO_MUCH)
            self._transport.abort()

    def _content(self) -> Any:
        answer = self._answer()
        return None if answer is None else answer.content

    def _fail(self, why: str) -> None:
        """Tells whoever waits for the answer."""
        content = self._content()
        (self._inner if content is None else content).set_exception(RefusedAnswer(why))

    def eof_received(self) -> bool | None:
        end: bool | None = self._inner.eof_received()
        return end

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        content = self._content()
        if self._failed:
            self._fail(_TOO_MUCH)
        elif content is not None and not content.is_eof() and content.exception() is None:
            # aiohttp does not tell whoever waits for the content that what follows it, its trailers, is wrong.
            self._fail("breaks the rules of HTTP behind the content of its answer")

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
