"""jaxexp/run.h by ctypes: handles that free themselves, errors as exceptions with their reasons."""

from __future__ import annotations

import ctypes
import enum
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .runtime import numpy_dtype


class Reason(enum.IntEnum):
    ARGUMENT, UNSUPPORTED, PLUGIN, DAMAGED, SYSTEM = range(1, 6)


class RunError(Exception):
    def __init__(self, reason: int, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(reason)


class Handle:
    def __init__(self, library: Library, kind: str, pointer: int) -> None:
        self.library, self.kind, self.pointer = library, kind, pointer

    def free(self) -> None:
        freed, self.pointer = pointer(self), 0
        getattr(self.library.c, f"jaxexp_{self.kind}_free")(freed)

    def __del__(self) -> None:
        self.free()


class Options(ctypes.Structure):
    """jaxexp_load_options"""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("devices", ctypes.c_void_p),
        ("device_count", ctypes.c_size_t),
        ("executables", ctypes.c_char_p),
        ("weights", ctypes.c_char_p),
        ("stable", ctypes.c_int),
        ("member", ctypes.c_char_p),
        ("compile_options", ctypes.c_void_p),
        ("compile_option_count", ctypes.c_size_t),
        ("sizes", ctypes.c_void_p),
        ("size_count", ctypes.c_size_t),
        ("pad", ctypes.c_int),
        ("only_sizes", ctypes.c_int),
        ("compile_cache", ctypes.c_char_p),
        ("compile_cache_bytes", ctypes.c_uint64),
        ("no_warm_up", ctypes.c_int),
    )


# The functions whose results are no int, by their results.
RETURNED: dict[Any, str] = {
    ctypes.c_void_p: "runtime_new load load_with load_bytes vjp with_weights unbound weight put array_view array_copy "
    "argument result array_shape array_data from_dlpack from_unversioned_dlpack array_from_dlpack "
    "array_from_unversioned_dlpack array_to_dlpack array_to_unversioned_dlpack",
    ctypes.c_int64: "device_memory_used device_memory_limit",
    ctypes.c_size_t: "argument_count result_count weight_count array_rank array_size_bytes runtime_device_count",
    ctypes.c_char_p: "argument_path result_path weight_name device_kind device_description error_message array_dtype "
    "function_name runtime_platform",
}


class Library:
    def __init__(self, path: Path) -> None:
        self.c: Any = ctypes.CDLL(str(path))
        for type_, names in RETURNED.items():
            for name in names.split():
                getattr(self.c, f"jaxexp_{name}").restype = type_

    def checked(self, name: str, *arguments: Any) -> Any:
        error = ctypes.c_void_p()
        result = getattr(self.c, f"jaxexp_{name}")(*arguments, ctypes.byref(error))
        if error:
            found = RunError(self.c.jaxexp_error_reason(error), self.c.jaxexp_error_message(error).decode())
            self.c.jaxexp_error_free(error)
            raise found
        return result

    def runtime(self, plugin: Path, **options: object) -> Handle:
        pairs = [part for item in options.items() for part in item]
        texts = (ctypes.c_char_p * len(pairs))(*(str(part).encode() for part in pairs))
        return Handle(self, "runtime", self.checked("runtime_new", str(plugin).encode(), texts, size(len(options))))

    def load(self, runtime: Handle, artifact: Path, devices: Sequence[int] = ()) -> Handle:
        numbers = (ctypes.c_size_t * len(devices))(*devices)
        return self._made("load", runtime, str(artifact).encode(), numbers, size(len(devices)))

    def load_with(self, runtime: Handle, artifact: Path, **fields: Any) -> Handle:
        """`fields` are those of jaxexp_load_options."""
        return self._made("load_with", runtime, str(artifact).encode(), _options(fields))

    def load_bytes(self, runtime: Handle, blob: Any, **fields: Any) -> Handle:
        """`blob` is an array of ctypes, which the caller keeps."""
        return self._made("load_bytes", runtime, blob, size(len(blob)), _options(fields))

    def _made(self, how: str, of: Handle, *arguments: Any) -> Handle:
        return Handle(self, "function", self.checked(how, pointer(of), *arguments))

    def texts(self, kind: str, count: str, function: Handle) -> list[str]:
        """As in `texts("weight_name", "weight_count", f)`."""
        number = getattr(self.c, f"jaxexp_{count}")(pointer(function))
        text = getattr(self.c, f"jaxexp_{kind}")
        assert text(pointer(function), size(number)) is None
        return [text(pointer(function), size(i)).decode() for i in range(number)]

    def changed(self, how: str, function: Handle, *arguments: Any) -> Handle:
        """What `jaxexp_vjp`, `jaxexp_with_weights` or `jaxexp_unbound` makes of a function."""
        return self._made(how, function, *arguments)

    def array(self, numbers: np.ndarray, dtype: str | None = None) -> Handle:
        """A copy."""
        shape = (ctypes.c_int64 * numbers.ndim)(*numbers.shape)
        name = (dtype or numbers.dtype.name).encode()
        data = np.ascontiguousarray(numbers)
        arguments = (name, shape, size(numbers.ndim), ctypes.c_void_p(data.ctypes.data))
        return Handle(self, "array", self.checked("array_copy", *arguments))

    def put(self, runtime: Handle, array: Handle, device: int = 0) -> Handle:
        return Handle(self, "array", self.checked("put", pointer(runtime), pointer(array), size(device)))

    def call(self, function: Handle, *arguments: Handle) -> list[Handle]:
        return self._called("call", function, arguments)

    def call_by_path(self, function: Handle, arguments: Mapping[str, Handle]) -> list[Handle]:
        paths = (ctypes.c_char_p * len(arguments))(*(path.encode() for path in arguments))
        return self._called("call_by_path", function, list(arguments.values()), paths)

    def _called(self, how: str, function: Handle, arguments: Sequence[Handle], *names: Any) -> list[Handle]:
        given = (ctypes.c_void_p * len(arguments))(*(argument.pointer for argument in arguments))
        found = (ctypes.c_void_p * self.c.jaxexp_result_count(pointer(function)))()
        self.checked(how, pointer(function), *names, given, size(len(arguments)), found)
        return [Handle(self, "array", array) for array in found]

    def read(self, array: Handle) -> np.ndarray:
        rank = self.c.jaxexp_array_rank(pointer(array))
        shape = ctypes.cast(self.c.jaxexp_array_shape(pointer(array)), ctypes.POINTER(ctypes.c_int64))[:rank]
        numbers = np.empty(shape, numpy_dtype(self.c.jaxexp_array_dtype(pointer(array)).decode()))
        data = ctypes.c_void_p(numbers.ctypes.data)
        self.checked("array_read", pointer(array), data, size(numbers.nbytes))
        return numbers


def _options(fields: dict[str, Any]) -> Any:
    return ctypes.byref(Options(**{"size": ctypes.sizeof(Options), **fields}))


def pointer(handle: Handle) -> ctypes.c_void_p:
    return ctypes.c_void_p(handle.pointer)


def size(number: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(number)


def declared(header: Path) -> set[str]:
    """The functions of run.h."""
    return set(re.findall(r"\b(jaxexp_\w+)\(", header.read_text()))
