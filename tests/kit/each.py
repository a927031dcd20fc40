"""Many cases of one promise as one test, which reports all cases that fail."""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, for short cases. Each has a folder and a monkeypatch of its own."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        given = [name.strip() for name in names.split(",")]
        signature = inspect.signature(test)

        @functools.wraps(test)
        def looped(**fixtures: Any) -> None:
            failed = []
            for number, value in enumerate(values):
                with contextlib.ExitStack() as stack:
                    own = dict(fixtures)
                    if isinstance(own.get("tmp_path"), Path):
                        own["tmp_path"] /= str(number)
                        own["tmp_path"].mkdir()
                    if "monkeypatch" in own:
                        own["monkeypatch"] = stack.enter_context(own["monkeypatch"].context())
                    try:
                        test(**own, **dict(zip(given, value if len(given) > 1 else [value], strict=True)))
                    except (Exception, pytest.fail.Exception) as error:
                        failed.append(f"{value!r:.200}:\n{''.join(traceback.format_exception(error))}")
            assert not failed, f"{len(failed)} of {number + 1} cases fail\n" + "\n".join(failed)

        del looped.__wrapped__  # type: ignore[attr-defined]
        rest = [parameter for name, parameter in signature.parameters.items() if name not in given]
        looped.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return looped

    return decorate
