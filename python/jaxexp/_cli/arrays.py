"""Arrays in NumPy's files, and numbers on the command line, as arguments and results of functions.

NumPy's files have no names for dtypes such as bfloat16: they hold the bytes of each element, as dtype V2. Random keys
are uint32 arrays with one more dimension. `jaxexp-run`, the program in C++, reads and writes the same.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np

from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.io import files

Array = np.ndarray[Any, Any]


def read(path: str) -> Array:
    """The array in a .npy file.

    Raises:
        click.ClickException: it is not such a file.
        OSError: it cannot be opened.
    """
    found = _load(path)
    if not isinstance(found, np.ndarray):
        found.close()
        raise click.ClickException(f"{path!r} is a .npz file, where one array is expected")
    return found


def read_all(path: str) -> dict[str, Array]:
    """The arrays in a .npz file by their names; errors as in `read`."""
    found = _load(path)
    if isinstance(found, np.ndarray):
        raise click.ClickException(f"{path!r} is a .npy file, where a .npz file is expected")
    with found:
        try:
            return {name: found[name] for name in found.files}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise _unreadable(path, error) from error


def read_named(path: str, paths: Sequence[str], what: str) -> dict[str, Array]:
    """All arguments or results, by their paths, from a .npz file that names them so, or arr_0, arr_1, ...; or the only
    one from a .npy file.

    Raises:
        click.ClickException: it is not such a file, or its arrays have other names.
        OSError: it cannot be opened.
    """
    found = {"arr_0": read(path)} if path.endswith(".npy") else read_all(path)
    for names in (list(paths), [f"arr_{i}" for i in range(len(paths))]):
        if found.keys() == set(names):
            return {own: found[name] for own, name in zip(paths, names, strict=True)}
    raise click.ClickException(
        f"{path!r} has the arrays {listed(found, most=8)}; expected {listed(paths, most=8)}, the paths of the {what}; "
        "or arr_0, arr_1, ... in this order"
    )


def difference(expected: Array, found: Array) -> str | None:
    """How a result differs from the expected one by more than rounding; None if it does not."""
    from jaxexp._compat.rounding import differing

    if expected.dtype.kind == "V" and expected.dtype.itemsize == found.dtype.itemsize:
        expected = expected.view(found.dtype)
    if expected.shape != found.shape:
        return f"expected shape {expected.shape}, found {found.shape}"
    differ = differing(expected.astype(found.dtype), found)
    if not (count := int(np.count_nonzero(differ))):
        return None
    first = tuple(map(int, np.unravel_index(np.argmax(differ), found.shape)))
    return f"{count:,} of {found.size:,} numbers; expected {expected[first]}, found {found[first]} at {list(first)}"


def _load(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> click.ClickException:
    said = str(error)
    if "allow_pickle" in said:  # for an array of objects, and for a file of another kind
        said = "it has Python objects, or is a file of another kind"
    return click.ClickException(f"{path!r} is not a file of numpy.save or numpy.savez: {said}")


def as_argument(where: str, array: Array, aval: Any) -> Any:
    """An array from a file as the argument of a function with this abstract value.

    Other arrays that do not fit are returned as they are: the call explains them.

    Raises:
        click.ClickException: the array has another dtype than bfloat16 or the like. The message begins with `where`.
    """
    import jax

    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        key_shape = aval.dtype._impl.key_shape
        is_key = array.dtype == np.uint32 and array.shape[-len(key_shape) :] == key_shape
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=_key_impl(aval)) if is_key else array
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == aval.dtype.itemsize:
        return array.view(aval.dtype)
    if aval.dtype.isbuiltin == _OF_ML_DTYPES and array.dtype != aval.dtype:
        raise click.ClickException(
            f"{where}: expected dtype {aval.dtype}, found {array.dtype}. NumPy's files hold the bytes of {aval.dtype}: "
            f"numpy.save(FILE, x.astype(ml_dtypes.{aval.dtype}).view('V{aval.dtype.itemsize}')) writes them"
        )
    return array


_OF_ML_DTYPES = 2  # dtypes that a package has added to NumPy's


def parsed(text: str, aval: Any) -> Any:
    """A number as the argument of a function with this abstract value, a scalar; for a random key, its seed.

    Raises:
        ValueError: it is not such a number; the message says what is expected.
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
    name: str = aval.dtype._impl.name
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
    with files.replacing(path) as file:
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
    return array if array.dtype.isbuiltin == 1 else np.asarray(array, order="C").view(f"V{array.dtype.itemsize}")
