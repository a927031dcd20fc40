"""A small cache of the values that were used last, safe to use in threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class Newest:
    """Values by their keys: at most `most`, the ones that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any:
        """The value; None if there is none."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Any, value: Any) -> None:
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
