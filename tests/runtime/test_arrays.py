"""Numbers where they are: results by pointer, callbacks, tensors of DLPack, in C++ and C."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from kit import runtime as built
from kit.run_c import Handle, Library, Reason, RunError, pointer

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]

X = np.array([1, 2, 3], np.float32)


def saved(path: Path, function: Any, *shape: int, **options: Any) -> Path:
    exported = jaxexp.export(jax.jit(function, **options))(jax.ShapeDtypeStruct(shape, np.float32))
    path.write_bytes(exported.serialize(compatibility=built.READER))
    return path


def test_arrays_of_cpp(installed: Path, plugin: Path, tmp_path: Path) -> None:
    """tests/cpp/arrays.cpp says what holds."""
    divided = NamedSharding(jax.make_mesh((4,), ("a",)), PartitionSpec("a"))
    files = [
        saved(tmp_path / "add", lambda x: x + 1, 3, donate_argnums=0),
        saved(tmp_path / "divided", lambda x: 2 * x, 8, in_shardings=divided, out_shardings=divided),
        saved(tmp_path / "slow", lambda x: jax.lax.fori_loop(0, 4, lambda _, y: jnp.tanh(y @ x), x), 300, 300),
        saved(tmp_path / "int4", lambda x: x.astype(jnp.int4), 5),
    ]
    done = subprocess.run([built.program("arrays", tmp_path), plugin, *files], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all alike\n"), done.stderr


@pytest.fixture
def result(library: Library, runtime: Handle, tmp_path: Path) -> Handle:
    """X + 1, on a device."""
    function = library.load(runtime, saved(tmp_path / "f.jaxexp", lambda x: x + 1, 3))
    return library.call(function, library.array(X))[0]


def test_a_pointer_in_c(library: Library, result: Handle) -> None:
    data = library.checked("array_data", pointer(result))
    assert data == library.checked("array_data", pointer(result))
    assert [*ctypes.cast(data, ctypes.POINTER(ctypes.c_float * 3)).contents] == [2, 3, 4]
    assert library.checked("array_is_ready", pointer(result)) == 1
    with pytest.raises(RunError, match="the array is NULL"):
        library.checked("array_data", None)


def test_a_callback_in_c(library: Library, result: Handle) -> None:
    called: list[tuple[int, bytes | None]] = []
    done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda *arguments: called.append(arguments))
    library.checked("array_wait", pointer(result))
    library.checked("array_on_ready", pointer(result), done, ctypes.c_void_p(7))
    while not called:
        pass
    assert called == [(7, None)]
    with pytest.raises(RunError, match="the callback is NULL"):
        library.checked("array_on_ready", pointer(result), None, None)


class Tensor:
    """What NumPy takes by DLPack, which calls the deleter."""

    def __init__(self, library: Library, array: Handle, kind: str = "dlpack") -> None:
        name = b"dltensor_versioned" if kind == "dlpack" else b"dltensor"
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.name, self.capsule = name, new(library.checked(f"array_to_{kind}", pointer(array)), name, None)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("kind", ["dlpack", "unversioned_dlpack"])
def test_numpy_uses_a_result_where_it_is(library: Library, result: Handle, kind: str) -> None:
    data = library.checked("array_data", pointer(result))
    found = np.from_dlpack(Tensor(library, result, kind))
    result.free()
    np.testing.assert_array_equal(found, X + 1)
    assert found.ctypes.data == data
    assert found.flags.writeable is False


@pytest.mark.parametrize("kind", ["dlpack", "unversioned_dlpack"])
def test_an_array_of_numpy_is_used_where_it_is(library: Library, kind: str) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    capsule = numbers.__dlpack__(max_version=(1, 0) if kind == "dlpack" else None)
    name = b"dltensor_versioned" if kind == "dlpack" else b"dltensor"
    of = ctypes.pythonapi.PyCapsule_GetPointer
    of.restype, of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.c_void_p(of(capsule, name))
    array = Handle(library, "array", library.checked(f"array_from_{kind}", tensor))
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), used := b"used_" + name)
    assert library.checked("array_data", pointer(array)) == numbers.ctypes.data, used
    np.testing.assert_array_equal(library.read(array), numbers)


def test_no_tensor(library: Library) -> None:
    with pytest.raises(RunError, match="the DLPack tensor is null") as error:
        library.checked("array_from_dlpack", None)
    assert error.value.reason == Reason.ARGUMENT
