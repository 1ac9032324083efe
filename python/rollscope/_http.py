"""Adds context to outgoing requests of `httpx`, `aiohttp` and `requests`."""

from __future__ import annotations

import functools
from typing import Any

from ._context import inject
from ._errors import swallowed

_patched: set[str] = set()


def _put(headers: Any) -> None:
    """Adds our headers, unless the caller has set them."""
    try:
        if "traceparent" not in headers:
            for key, value in inject({}).items():
                headers[key] = value
    except Exception as error:
        swallowed(error)


def _httpx() -> None:
    import httpx

    for client in (httpx.Client, httpx.AsyncClient):
        original = client.send

        if client is httpx.Client:

            @functools.wraps(original)
            def send(self: Any, request: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                _put(request.headers)
                return _original(self, request, *args, **kwargs)

        else:

            @functools.wraps(original)
            async def send(self: Any, request: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                _put(request.headers)
                return await _original(self, request, *args, **kwargs)

        client.send = send


def _requests() -> None:
    import requests

    original = requests.Session.send

    @functools.wraps(original)
    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        _put(request.headers)
        return original(self, request, **kwargs)

    requests.Session.send = send


def _aiohttp() -> None:
    import aiohttp
    from multidict import CIMultiDict

    original = aiohttp.ClientSession._request

    @functools.wraps(original)
    async def _request(self: Any, method: Any, url: Any, *, headers: Any = None, **kwargs: Any) -> Any:
        try:
            headers = CIMultiDict(headers or {})
            _put(headers)
        except Exception as error:
            swallowed(error)
        return await original(self, method, url, headers=headers, **kwargs)

    aiohttp.ClientSession._request = _request


def instrument() -> list[str]:
    for name, patch in (("httpx", _httpx), ("aiohttp", _aiohttp), ("requests", _requests)):
        if name in _patched:
            continue
        try:
            patch()
            _patched.add(name)
        except ImportError:
            pass
        except Exception as error:
            swallowed(error)
    return sorted(_patched)
