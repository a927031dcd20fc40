"""Arrays of NumPy and of other libraries on their way to the plugin, and results on their way back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from jaxexp import _runtime
from jaxexp._errors import ExportTypeError, RunError, cause
from jaxexp._kernel.artifact import scalars
from jaxexp._kernel.artifact.words import dtype_and_shape, why_traced

_CPU = 1  # DLPack's number for host memory


class Array:
    """An array on a device, which may still be computed. `Session.on_device`, `Session.put` and `Session.weights`
    return it.

    A session takes it without a copy. `numpy.asarray` waits for it, and returns a read-only array: on the CPU the
    memory of the plugin, elsewhere a copy. Libraries with DLPack, as in ``torch.from_dlpack``, take it without a copy
    on CUDA and ROCm, too.

    Attributes:
        dtype: the name of its dtype, such as ``"float32"``.
        shape: its dimensions.
    """

    __slots__ = ("_native",)
    __module__ = "jaxexp.runtime"

    def __init__(self, native: _runtime.Array) -> None:
        self._native = native

    @property
    def dtype(self) -> str:
        return self._native.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._native.shape

    def block_until_ready(self) -> Array:
        """Waits until the array is computed, and returns it.

        Raises:
            RunError: the computation failed.
        """
        self._native.wait()
        return self

    def is_ready(self) -> bool:
        """Whether the array is computed."""
        return self._native.is_ready()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = to_numpy(self._native, dtype_of(self.dtype))
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"copy=False cannot change {self._native} to another dtype, which takes a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __jax_array__(self) -> Any:
        raise ExportTypeError(
            "JAX does not take an array of jaxexp.runtime: convert it with jax.numpy.from_dlpack or numpy.asarray"
        )

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A tensor of DLPack. This waits until it is computed, so any stream may read it."""
        if copy:
            raise BufferError("an Array is shared through DLPack without a copy: leave out copy=True")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on device {self.__dlpack_device__()} of DLPack, not on {dl_device}")
        return self._native.to_dlpack(max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._native.dlpack_device()

    def __repr__(self) -> str:
        return f"Array({self._native})"


def to_numpy(native: _runtime.Array, dtype: np.dtype[Any]) -> np.ndarray:
    """An array of this dtype when it is computed, only to be read."""
    buffer: Any = native  # which types can say since Python 3.12
    return np.ndarray(native.shape, dtype, buffer)


@functools.cache
def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype for arrays of a dtype of JAX."""
    if name.startswith("key<"):
        return np.dtype(np.uint32)
    if name == "float0":
        return np.dtype(np.bool_)
    return scalars.numpy_dtype(name)


class Argument:
    """What a call takes for an argument.

    Attributes:
        path: where it is in a call.
        name: the name of the dtype, as the plugin has arrays of it.
    """

    __slots__ = ("_plugin", "_text", "name", "path")

    def __init__(self, plugin: _runtime.Plugin, path: str, dtype: str, text: str) -> None:
        self._plugin, self.path, self._text = plugin, path, text
        self.name = "uint32" if dtype.startswith("key<") else "bool" if dtype == "float0" else dtype

    def taken(self, value: Any) -> Any:
        """The value as `_runtime.Function.call` takes it; a RunError if it is no array of this dtype."""
        if type(value) is Array:
            return value._native
        dtype = dtype_of(self.name)
        if type(value) is not np.ndarray:
            if type(value) in scalars.KINDS:
                if (array := scalars.array_of(value, dtype, self.name)) is None:
                    raise self._refused(f"must have dtype {self.name}", f"the number {value!r:.40}")
                value = array
            elif isinstance(value := self.foreign(value), _runtime.Array):
                return value
        if value.dtype != dtype:
            if value.dtype.newbyteorder("=") != dtype:
                raise self._refused(f"must have dtype {self.name}", f"dtype {value.dtype.name}", value)
            value = value.astype(dtype)
        if not value.flags.c_contiguous:
            value = np.ascontiguousarray(value)
        return value if dtype.isbuiltin == 1 else value.view(f"u{value.itemsize}")  # which has a buffer

    def foreign(self, value: Any) -> Any:
        """An array of another library, or a scalar of NumPy's, as an array of NumPy or of the plugin."""
        if why_not := why_traced(value):
            raise self._refused("must be an array", why_not)
        if callable(is_deleted := getattr(value, "is_deleted", None)) and is_deleted():
            raise self._refused("must be an array", "one of JAX that was deleted, or donated to an earlier call")
        try:
            if callable(is_neg := getattr(value, "is_neg", None)) and is_neg():
                value = value.resolve_neg()  # a view of PyTorch, which DLPack has as what is viewed
            if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack_device__"):
                kind, number = map(int, value.__dlpack_device__())
                if kind != _CPU:
                    stream = self._plugin.stream(kind, number)
                    return self._plugin.from_dlpack(value.__dlpack__(stream=stream or None))
                try:
                    return np.from_dlpack(value)
                except (BufferError, RuntimeError):  # NumPy does not know its dtype, or its version of DLPack
                    return self._plugin.from_dlpack(value.__dlpack__())
            if hasattr(value, "__array__"):
                return np.asarray(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise self._refused("must be an array", f"a {type(value).__qualname__}: {error}") from cause(error)
        raise self._refused("must be an array", f"a {type(value).__qualname__}")

    def _refused(self, must: str, found: str, given: np.ndarray | None = None) -> RunError:
        called = "" if given is None else f", called with {dtype_and_shape(given.dtype.name, given.shape)}"
        exported = f" (exported with {self._text}{called})" if self._text else ""
        return RunError(f"{self.path} {must}, found {found}{exported}", "argument")
