"""Beside calls, in C++ and C: results by pointer, callbacks, tensors of DLPack, options, devices, a log."""

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
from kit.run_c import Handle, Library, Reason, RunError, pointer, size

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]

X = np.array([1, 2, 3], np.float32)


def saved(path: Path, function: Any, *shape: int, compatibility: str | None = built.READER, **options: Any) -> Path:
    exported = jaxexp.export(jax.jit(function, **options))(jax.ShapeDtypeStruct(shape, np.float32))
    path.write_bytes(exported.serialize(compatibility=compatibility))
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
    command = [built.program("arrays", tmp_path), plugin, *files, tmp_path / "executables"]
    done = subprocess.run(command, capture_output=True, text=True)
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


def test_options_devices_and_a_log_in_c(library: Library, plugin: Path, tmp_path: Path) -> None:
    own = library.runtime(plugin, cpu_device_count=2)
    lines: list[bytes] = []
    log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda _, line: lines.append(line))
    library.checked("set_log", pointer(own), log, None)
    assert [library.c.jaxexp_device_kind(pointer(own), size(i)) for i in range(3)] == [b"cpu", b"cpu", None]
    assert [library.c.jaxexp_device_id(pointer(own), size(i)) for i in range(3)] == [0, 1, -1]
    assert library.c.jaxexp_device_description(pointer(own), size(0))
    assert library.c.jaxexp_device_memory_limit(pointer(own), size(2)) == -1
    path = saved(tmp_path / "f.jaxexp", lambda x: x + 1, 3)

    def load(name: bytes, path: Path = path) -> Handle:
        options = (ctypes.c_char_p * 2)(name, b"true")
        address = ctypes.cast(options, ctypes.c_void_p)
        return library.load_with(own, path, compile_options=address, compile_option_count=1)

    function = load(b"xla_cpu_enable_fast_math")
    np.testing.assert_array_equal(library.read(library.call(function, library.array(X))[0]), X + 1)
    assert len(lines) == 1 and b": compiled in " in lines[0]
    # Not that the module is newer than the plugin, which it is, and which is not why.
    newer = saved(tmp_path / "newer.jaxexp", lambda x: x + 1, 3, compatibility=None)
    for file in (path, newer):
        refused = load(b"xla_no_such_option", file)
        with pytest.raises(
            RunError, match=r"does not take the compile option xla_no_such_option \(.*: leave it"
        ) as error:
            library.call(refused, library.array(X))
        assert error.value.reason is Reason.ARGUMENT
    library.checked("set_log", pointer(own), None, None)


def test_times_and_room_for_results_in_c(library: Library, runtime: Handle, tmp_path: Path) -> None:
    function = library.load(runtime, saved(tmp_path / "f.jaxexp", lambda x: (x + 1, x.sum()), 3))
    x = library.array(X)
    given, found = (ctypes.c_void_p * 1)(x.pointer), (ctypes.c_void_p * 2)()
    times = (ctypes.c_int64 * 3)()
    library.checked("call_timed", pointer(function), given, size(1), found, times)
    assert min(times) > 0
    assert library.read(Handle(library, "array", found[1])) == 6
    Handle(library, "array", found[0]).free()
    room = np.zeros(4, np.float32)
    targets = (ctypes.c_void_p * 2)(room[1:].ctypes.data, room.ctypes.data)
    library.checked("call_into", pointer(function), given, size(1), targets, (ctypes.c_size_t * 2)(12, 4))
    np.testing.assert_array_equal(room, [6, 2, 3, 4])
    with pytest.raises(RunError, match=r"result 1, float32\[\], takes 4 bytes, and there is room for 8"):
        library.checked("call_into", pointer(function), given, size(1), targets, (ctypes.c_size_t * 2)(12, 8))


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


@pytest.mark.parametrize("by_runtime", [False, True])
@pytest.mark.parametrize("kind", ["dlpack", "unversioned_dlpack"])
def test_an_array_of_numpy_is_used_where_it_is(library: Library, runtime: Handle, kind: str, by_runtime: bool) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    capsule = numbers.__dlpack__(max_version=(1, 0) if kind == "dlpack" else None)
    name = b"dltensor_versioned" if kind == "dlpack" else b"dltensor"
    of = ctypes.pythonapi.PyCapsule_GetPointer
    of.restype, of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.c_void_p(of(capsule, name))
    name_of_function = f"from_{kind}" if by_runtime else f"array_from_{kind}"
    arguments = (pointer(runtime), tensor) if by_runtime else (tensor,)
    array = Handle(library, "array", library.checked(name_of_function, *arguments))
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), used := b"used_" + name)
    assert library.checked("array_data", pointer(array)) == numbers.ctypes.data, used
    np.testing.assert_array_equal(library.read(array), numbers)


def test_streams_are_those_of_gpus(library: Library, runtime: Handle) -> None:
    stream = ctypes.c_ssize_t()
    with pytest.raises(
        RunError, match="in host memory or on a device of the plugin, and this one is on device 3 of type 2"
    ):
        library.checked("stream", pointer(runtime), ctypes.c_int32(2), ctypes.c_int32(3), ctypes.byref(stream))


def test_no_tensor(library: Library) -> None:
    with pytest.raises(RunError, match="the DLPack tensor is null") as error:
        library.checked("array_from_dlpack", None)
    assert error.value.reason == Reason.ARGUMENT
