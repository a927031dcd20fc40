"""Calls a serialized function by ctypes, in a Python without JAX: NumPy arrays in, NumPy arrays out.

python predict.py LIBRARY PLUGIN ARTIFACT [INPUT.npy...]
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

HANDLES = ("runtime", "function", "array", "error")


class Library:
    """libjaxexp-c. What fails raises a RuntimeError."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        sizes = ctypes.POINTER(ctypes.c_int64)
        signatures = {
            "runtime_new": (pointer, text, pointer, size, pointer),
            "load": (pointer, pointer, text, pointer, size, pointer),
            "result_count": (size, pointer),
            "array_view": (pointer, text, sizes, size, pointer, pointer),
            "call": (ctypes.c_int, pointer, pointer, size, pointer, pointer),
            "array_dtype": (text, pointer),
            "array_rank": (size, pointer),
            "array_shape": (sizes, pointer),
            "array_read": (ctypes.c_int, pointer, pointer, size, pointer),
            "error_message": (text, pointer),
            **{f"{handle}_free": (None, pointer) for handle in HANDLES},
        }
        for name, (result, *arguments) in signatures.items():
            function = getattr(self.c, f"jaxexp_{name}")
            function.restype, function.argtypes = result, arguments

    def checked(self, name: str, *arguments: Any) -> Any:
        """Calls a function whose last parameter is an error."""
        error = ctypes.c_void_p()
        result = getattr(self.c, f"jaxexp_{name}")(*arguments, ctypes.byref(error))
        if error:
            message = self.c.jaxexp_error_message(error).decode()
            self.c.jaxexp_error_free(error)
            raise RuntimeError(message)
        return result


class Function:
    """A function of an artifact, on the first devices of a plugin."""

    def __init__(self, library: Library, plugin: str, artifact: str) -> None:
        self.library = library
        runtime = library.checked("runtime_new", plugin.encode(), None, 0)
        try:
            self.handle = library.checked("load", runtime, artifact.encode(), None, 0)
        finally:
            library.c.jaxexp_runtime_free(runtime)

    def close(self) -> None:
        self.library.c.jaxexp_function_free(self.handle)

    def __call__(self, *arguments: np.ndarray) -> list[np.ndarray]:
        c = self.library.c
        results = (ctypes.c_void_p * c.jaxexp_result_count(self.handle))()
        inputs: list[int] = []
        try:
            arrays = [np.asarray(argument, order="C") for argument in arguments]
            for array in arrays:
                shape = (ctypes.c_int64 * array.ndim)(*array.shape)
                view = (array.dtype.name.encode(), shape, array.ndim, array.ctypes.data)
                inputs.append(self.library.checked("array_view", *view))
            handles = (ctypes.c_void_p * len(inputs))(*inputs)
            self.library.checked("call", self.handle, handles, len(inputs), results)
            return [self._numbers(result) for result in results]
        finally:
            for array in [*inputs, *results]:
                c.jaxexp_array_free(array)

    def _numbers(self, array: int) -> np.ndarray:
        c = self.library.c
        shape = c.jaxexp_array_shape(array)[: c.jaxexp_array_rank(array)]
        numbers = np.empty(shape, c.jaxexp_array_dtype(array).decode())
        self.library.checked("array_read", array, numbers.ctypes.data, numbers.nbytes)
        return numbers


def main(arguments: Sequence[str]) -> None:
    library, plugin, artifact, *inputs = arguments
    function = Function(Library(library), plugin, artifact)
    for result in function(*map(np.load, inputs)):
        print(result)
    function.close()


if __name__ == "__main__":
    main(sys.argv[1:])
