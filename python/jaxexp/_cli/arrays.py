"""Arrays in NumPy's files, and numbers on the command line, as arguments and results of functions.

NumPy's files have no names for dtypes such as bfloat16: they hold the bytes of each element, as dtype V2. Random keys
are uint32 arrays with one more dimension. `jaxexp-run`, the program in C++, reads and writes the same.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import click
import numpy as np

from jaxexp._errors import cause
from jaxexp._kernel.artifact.words import cut, listed
from jaxexp._kernel.io import files
from jaxexp._kernel.io.other_files import ARRAY, HEAD, WEIGHTS, kind_of_arrays, kind_of_ours

Array = np.ndarray[Any, Any]

_ZIP = b"PK"
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # the same, but for names of fields
}
_MOST_HEAD = 10_000  # bytes that NumPy reads
_MOST_DIMENSIONS = 64
# What NumPy and zipfile raise for damaged files.
_DAMAGED = (
    *(ValueError, TypeError, SyntaxError, EOFError, RuntimeError, OverflowError),
    *(tokenize.TokenError, zlib.error, struct.error, zipfile.BadZipFile),
)


class Stored(NamedTuple):
    """An array in a file, of which only the head was read: what is behind it may take any memory.

    Attributes:
        where: the file, and the name of the array in it, for messages.
        dtype, shape: what the head says.
        array: reads all of it.
    """

    where: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    array: Callable[[], Array]


def read(path: str) -> Stored:
    """The array in a .npy file."""
    with _explained(path), files.regular(path) as file:
        head = file.read(HEAD)
        if head.startswith(_ZIP):
            raise click.ClickException(f"{path!r} is a .npz file, where one array is expected")
        if (kind := kind_of_ours(head)) and kind != ARRAY:
            advice = ", which is given as --weights" if kind == WEIGHTS else ""
            raise click.ClickException(f"{path!r} is {kind}{advice}, where an array is expected: a .npy file")
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        return _stored(repr(path), path, file, size, functools.partial(files.regular, path))


def read_all(path: str) -> dict[str, Stored]:
    """The arrays in a .npz file by their names. The file stays open while one of them is there."""
    with files.regular(path) as file:
        if file.read(HEAD).startswith(np.lib.format.MAGIC_PREFIX):
            raise click.ClickException(f"{path!r} is a .npy file, where a .npz file is expected")
    found: dict[str, Stored] = {}
    with _explained(path):
        zipped = zipfile.ZipFile(path)
        for member in zipped.infolist():
            name, suffix, _ = member.filename.rpartition(".npy")
            if not suffix:
                raise ValueError(f"its member {cut(member.filename)!r} is not an array")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{cut(name)!r} is compressed in a way that numpy.savez_compressed does not know")
            if name in found:
                raise ValueError(f"it has {cut(name)!r} twice")
            again = functools.partial(zipped.open, member)
            with again() as content:
                found[name] = _stored(f"{path!r}, {cut(name)!r}", path, content, member.file_size, again)
    return found


def read_named(path: str, paths: Sequence[str], what: str) -> dict[str, Stored]:
    """All arguments or results, by their paths, from a .npz file that names them so, or arr_0, arr_1, ...; or the only
    one from a .npy file.
    """
    found = {"arr_0": read(path)} if path.endswith(".npy") else read_all(path)
    for names in (list(paths), [f"arr_{i}" for i in range(len(paths))]):
        if found.keys() == set(names):
            return {own: found[name] for own, name in zip(paths, names, strict=True)}
    raise click.ClickException(
        f"{path!r} has the arrays {listed(found, cut, most=8)}; expected {listed(paths, most=8)}, the paths of the "
        f"{what}; or arr_0, arr_1, ... in this order"
    )


def _stored(where: str, path: str, file: IO[bytes], size: int, again: Callable[[], IO[bytes]]) -> Stored:
    """An array in a file of this size, which `again` opens again. A ValueError if its head is not one of NumPy's."""
    head = io.BytesIO(file.read(_MOST_HEAD + 12))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about heads that Python 2 wrote
            version = np.lib.format.read_magic(head)
            if version not in _READERS:
                raise ValueError("its format is newer than this jaxexp reads")
            shape, _, dtype = _READERS[version](head)
    except (MemoryError, RecursionError):  # brackets in brackets
        shape, dtype = (-1,), np.dtype(np.bool_)
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError("NumPy writes no such header")
    if dtype.hasobject:
        raise ValueError("it has Python objects")
    if math.prod(shape) * dtype.itemsize > size - head.tell():
        raise ValueError("it ends before its last number")

    def array() -> Array:
        with _explained(path), again() as file:
            found: Array = np.lib.format.read_array(file, allow_pickle=False)
            return found

    return Stored(where, dtype, shape, array)


@contextlib.contextmanager
def _explained(path: str) -> Generator[None]:
    try:
        yield
    except _DAMAGED as error:
        said = f"{path!r} is not a file of numpy.save or numpy.savez: {error}"
        raise click.ClickException(said) from cause(error)


def difference(expected: Stored, found: Array) -> str | None:
    """How a result differs from the expected one by more than rounding; None if it does not."""
    from jaxexp._compat.migrate import differing

    if expected.shape != found.shape:
        return f"expected shape {cut(str(expected.shape))}, found {found.shape}"
    are_bytes = _are_bytes(expected.dtype, found.dtype)
    if not are_bytes and expected.dtype.kind not in _NUMBERS:
        return f"expected numbers, found dtype {cut(str(expected.dtype))}"
    array = expected.array()
    array = array.view(found.dtype) if are_bytes else array.astype(found.dtype)
    differ = differing(array, found)
    if not (count := int(np.count_nonzero(differ))):
        return None
    first = tuple(map(int, np.unravel_index(np.argmax(differ), found.shape)))
    return f"{count:,} of {found.size:,} numbers; expected {array[first]}, found {found[first]} at {list(first)}"


_NUMBERS = "biufc"


def _are_bytes(dtype: np.dtype[Any], of: np.dtype[Any]) -> bool:
    """Whether elements are the bytes of those of a dtype that NumPy's files have no name for."""
    is_bytes = dtype.char == "V" and dtype.names is None and dtype.subdtype is None
    return is_bytes and of.isbuiltin == _OF_ML_DTYPES and dtype.itemsize == of.itemsize


class Argument(NamedTuple):
    """An array in a file as an argument: what a call takes it for, and what is passed to it then."""

    aval: Any
    value: Callable[[], Any]

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.aval.shape
        return shape


def as_argument(stored: Stored, aval: Any) -> Argument:
    """An array in a file as the argument of a function with this abstract value. Refuses a dtype that no call could
    take; another shape is refused by `values`.
    """
    import jax
    from jax.core import ShapedArray

    from jaxexp import _jax

    dtype, shape = stored.dtype, stored.shape
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        key_shape = _jax.key_implementation(aval.dtype).key_shape
        if dtype == np.uint32 and shape[-len(key_shape) :] == key_shape:
            keys, impl = ShapedArray(shape[: -len(key_shape)], aval.dtype), _key_impl(aval)
            return Argument(keys, lambda: jax.random.wrap_key_data(jax.numpy.asarray(stored.array()), impl=impl))
    elif _are_bytes(dtype, aval.dtype):
        return Argument(ShapedArray(shape, aval.dtype), lambda: _of_bytes(stored, aval.dtype))
    elif aval.dtype.isbuiltin == _OF_ML_DTYPES and dtype != aval.dtype:
        raise click.ClickException(
            f"{stored.where}: expected dtype {aval.dtype}, found {cut(str(dtype))}. NumPy's files hold the bytes of "
            f"{aval.dtype}: numpy.save(FILE, x.astype(ml_dtypes.{aval.dtype}).view('V{aval.dtype.itemsize}')) writes "
            "them"
        )
    if dtype.kind not in _NUMBERS or dtype.itemsize > _WIDEST[dtype.kind]:
        raise click.ClickException(f"{stored.where}: expected dtype {aval.dtype}, found {cut(str(dtype))}")
    native = dtype.newbyteorder("=")
    taken_for = ShapedArray(shape, jax.dtypes.canonicalize_dtype(native))
    return Argument(taken_for, lambda: stored.array().astype(native, copy=False))


def _of_bytes(stored: Stored, dtype: np.dtype[Any]) -> Array:
    """The numbers that bytes in a file are; numbers of less than a byte have one each."""
    array = stored.array()
    if bits := _BITS.get(dtype.name):
        is_signed = dtype.name.startswith("int")
        held, least = array.view(np.int8 if is_signed else np.uint8), -(2 ** (bits - 1)) if is_signed else 0
        if array.size and (held.min() < least or held.max() >= 2**bits):
            raise click.ClickException(f"{stored.where}: expected numbers of {dtype}, found larger ones")
    return array.view(dtype)


_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}  # of dtypes with less than a byte
_OF_ML_DTYPES = 2  # dtypes that a package has added to NumPy's
_WIDEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # bytes of an element


def values(called: Any, given: Sequence[Any]) -> list[Any]:
    """The arguments of a call, each an `Argument` or a value that was made for it. Those in files are read when all are
    known to fit. `called` is the function, with the signature of its calls, whose error it is if one does not fit.
    """
    from jax.core import ShapedArray

    from jaxexp._kernel.call import primitive

    avals = [
        one.aval if isinstance(one, Argument) else ShapedArray(one.shape, aval.dtype)
        for one, aval in zip(given, called.in_avals, strict=True)
    ]
    primitive.check(called, avals)
    return [one.value() if isinstance(one, Argument) else one for one in given]


def parsed(text: str, aval: Any) -> Any:
    """A number as the argument of a function with this abstract value, a scalar; for a random key, its seed. The
    message of a ValueError says what is expected.
    """
    import jax
    import jax.numpy as jnp

    dtype, number = aval.dtype, text.strip()
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.key(_integer(number, np.dtype(np.uint32)), impl=_key_impl(aval))
    if dtype == np.bool_:
        words = {"true": True, "1": True, "false": False, "0": False}
        if number.lower() not in words:
            raise ValueError("true or false")
        return np.bool_(words[number.lower()])
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(_integer(number, dtype)).astype(dtype)
    try:
        return np.asarray(complex(number) if jnp.issubdtype(dtype, jnp.complexfloating) else float(number), dtype)
    except ValueError:
        raise ValueError("a number") from None


def _integer(text: str, dtype: Any) -> int:
    import jax.numpy as jnp

    info = jnp.iinfo(dtype)
    try:
        found = int(text)
    except ValueError:
        raise ValueError("an integer") from None
    if not info.min <= found <= info.max:
        raise ValueError(f"an integer from {info.min} to {info.max}")
    return found


def example(aval: Any, seed: int, index: int) -> Any:
    """Random numbers of a shape and dtype: floats are normally distributed, integers are from 0 to 9.

    They depend on the seed and the index of the argument only.
    """
    import jax
    import jax.numpy as jnp

    random, dtype, shape = np.random.default_rng([seed, index]), aval.dtype, aval.shape
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        key = jax.random.key(int(random.integers(2**31)), impl=_key_impl(aval))
        return jax.random.split(key, shape) if shape else key
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    if jnp.issubdtype(dtype, jnp.integer):
        return random.integers(0, min(9, int(jnp.iinfo(dtype).max)) + 1, shape).astype(dtype)
    numbers = random.standard_normal(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.asarray(numbers + 1j * random.standard_normal(shape), dtype)
    return np.asarray(numbers, dtype)


def _key_impl(aval: Any) -> str:
    """The name of the implementation of random keys."""
    from jaxexp import _jax

    name: str = _jax.key_implementation(aval.dtype).name
    return name


def of_result(result: Any) -> Array:
    """A result in the memory of this process."""
    import jax

    if jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
        result = jax.random.key_data(result)
    array = np.asarray(result)
    return array.astype(np.bool_) if array.dtype == jax.dtypes.float0 else array


def write(path: str, arrays: Mapping[str, Array]) -> None:
    """Writes arrays to a .npz file by their names, or the only one to a .npy file. It appears complete, or not at
    all."""
    with files.replacing(path, kind_of_arrays(path)) as file:
        if path.endswith(".npy"):
            (array,) = arrays.values()
            np.lib.format.write_array(file, _as_held(array), allow_pickle=False)
            return
        with zipfile.ZipFile(file, "w") as zipped:
            for name, array in arrays.items():
                with zipped.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _as_held(array), allow_pickle=False)


def _as_held(array: Array) -> Array:
    """An array whose dtype NumPy's files have a name for, or that has the bytes of its elements."""
    is_known = array.dtype.isbuiltin != _OF_ML_DTYPES  # an unpickled float32 is not built in
    return array if is_known else np.asarray(array, order="C").view(f"V{array.dtype.itemsize}")
