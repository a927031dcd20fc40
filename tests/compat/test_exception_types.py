"""The built-in type of each error, side by side: an `except` clause for jax.export catches the same with jaxexp."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.alike import LIBRARIES, reload
from kit.corpus import arr
from kit.each import each

pytestmark = pytest.mark.jax

X = arr(3, 3)


def of_sin(library: Any) -> Any:
    return reload(library, library.export(jax.jit(jnp.sin))(X))


def of_static(library: Any) -> Any:
    fun = jax.jit(lambda x, how, *, n=2: x * n, static_argnums=1, static_argnames="n")
    return reload(library, library.export(fun)(X, "how", n=3))


def of_custom_call(library: Any) -> Any:
    fun = jax.jit(lambda x: jax.ffi.ffi_call("nobody_has_it", jax.ShapeDtypeStruct(x.shape, x.dtype))(x))
    checks = [library.DisabledSafetyCheck.custom_call("nobody_has_it")]
    return reload(library, library.export(fun, disabled_checks=checks)(X))


def of_module(library: Any, damage: Callable[[bytes], bytes]) -> Any:
    exported = library.export(jax.jit(jnp.sin))(X)
    return dataclasses.replace(exported, mlir_module_serialized=damage(exported.mlir_module_serialized))


def of_dtype(library: Any, dtype: Any) -> Any:
    exported = library.export(jax.jit(jnp.sin))(X)
    return dataclasses.replace(exported, in_avals=(exported.in_avals[0].update(dtype=np.dtype(dtype)),))


def of_open_sharding(library: Any) -> Any:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    return library.export(jax.jit(lambda x: jnp.sin(x)))(jax.device_put(arr(8, 4), NamedSharding(mesh, P("x", "y"))))


def called_twice(library: Any, argument: Any) -> Any:
    """The second call takes the way through JAX's caches."""
    function = of_sin(library)
    function.call(X)
    return function.call(argument)


def registered_twice(library: Any) -> None:
    for fields in ("a", "a b"):
        library.register_namedtuple_serialization(
            collections.namedtuple("Taken", fields), serialized_name=f"test_exception_types.{library.__name__}"
        )


def released(view: memoryview) -> memoryview:
    view.release()
    return view


DAY = np.datetime64("2026-11-22")
PROVOCATIONS: dict[str, tuple[type[BaseException], Callable[[Any], Any]]] = {
    "static argument again": (ValueError, lambda e: of_static(e).call(X, "how")),
    "static argument again, under jit": (ValueError, lambda e: jax.jit(lambda x: of_static(e).call(x, "how"))(X)),
    "text for an array": (TypeError, lambda e: of_sin(e).call("text")),
    "an object for an array": (TypeError, lambda e: of_sin(e).call(object())),
    "a spec for an array": (TypeError, lambda e: of_sin(e).call(jax.ShapeDtypeStruct((3, 3), np.float32))),
    "a list for an array": (ValueError, lambda e: of_sin(e).call([1.0, 2.0])),
    "no argument": (ValueError, lambda e: of_sin(e).call()),
    "dates": (TypeError, lambda e: of_sin(e).call(np.full((3, 3), DAY))),
    "one date": (TypeError, lambda e: of_sin(e).call(DAY)),
    "strings, second call": (TypeError, lambda e: called_twice(e, np.full((3, 3), "a"))),
    "dates in export": (TypeError, lambda e: e.export(jax.jit(jnp.sin))(np.full((3, 3), DAY))),
    "custom call that nobody has": (RuntimeError, lambda e: of_custom_call(e).call(X)),
    "custom call that nobody has, under jit": (RuntimeError, lambda e: jax.jit(of_custom_call(e).call)(X)),
    "dtype of text": (KeyError, lambda e: of_dtype(e, "U3").serialize()),
    "dtype of records": (KeyError, lambda e: of_dtype(e, [("a", "f4")]).serialize()),
    "sharding left open": (TypeError, lambda e: of_open_sharding(e).serialize()),
    "no MLIR context": (RuntimeError, lambda e: of_sin(e).mlir_module(serialized=False)),
    "forward mode without VJPs": (TypeError, lambda e: jax.jvp(of_sin(e).call, (X,), (X,))),
    "vjp_order is text": (TypeError, lambda e: of_sin(e).serialize(vjp_order="1")),
    "artifact is text": (TypeError, lambda e: e.deserialize("text")),
    "every second byte": (BufferError, lambda e: e.deserialize(memoryview(bytes(64))[::2])),
    "a column": (BufferError, lambda e: e.deserialize(np.zeros((64, 2), np.uint8)[:, 0])),
    "in Fortran's order": (BufferError, lambda e: e.deserialize(np.zeros((64, 2), np.uint8, "F"))),
    "a view that was released": (ValueError, lambda e: e.deserialize(released(memoryview(bytes(64))))),
    "platforms is a number": (TypeError, lambda e: e.export(jax.jit(jnp.sin), platforms=3)(X)),
    "platform that is not there": (RuntimeError, lambda e: e.export(jax.jit(jnp.sin), platforms=["gpu"])(X)),
    "disabled_checks is one check": (
        TypeError,
        lambda e: e.export(jax.jit(jnp.sin), disabled_checks=e.DisabledSafetyCheck.platform())(X),
    ),
    "unknown option": (TypeError, lambda e: e.export(jax.jit(jnp.sin), surprise=1)),
    "a method of an Exported": (ValueError, lambda e: e.export(of_sin(e).call)(X)),
    "a lowered function": (ValueError, lambda e: e.export(jax.jit(jnp.sin).lower(X))(X)),
    "text in export": (TypeError, lambda e: e.export(jax.jit(jnp.sin))("text")),
    "argument missing in export": (TypeError, lambda e: e.export(jax.jit(jnp.sin))()),
    "result is text": (TypeError, lambda e: e.export(jax.jit(lambda x: "text"))(X)),
    "name taken": (ValueError, registered_twice),
    "namedtuple that is none": (
        ValueError,
        lambda e: e.register_namedtuple_serialization(list, serialized_name="test_exception_types.list"),
    ),
    "no such attribute": (AttributeError, lambda e: of_sin(e).surprise),
    "no such name": (AttributeError, lambda e: e.surprise),
    "assigned field": (AttributeError, lambda e: setattr(of_sin(e), "fun_name", "other")),
    "called itself": (TypeError, lambda e: of_sin(e)(X)),
    "wrong mesh": (ValueError, lambda e: of_placed(e).in_shardings_jax(jax.make_mesh((4,), ("x",), devices=EIGHT[:4]))),
    "mesh with other names": (ValueError, lambda e: of_placed(e).in_shardings_jax(jax.make_mesh((8,), ("z",)))),
    "too few devices": (ValueError, lambda e: of_placed(e).call(arr(8))),
}
EIGHT = jax.devices()


def of_placed(library: Any) -> Any:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    fun = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("x")))
    return reload(library, library.export(fun)(arr(8)))


def built_in(error: BaseException) -> type[BaseException]:
    """The first class of an error that every Python has."""
    return next(kind for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)


@each("mistake", PROVOCATIONS)
def test_the_same_except_clause_catches_it(mistake: str) -> None:
    expected, provoke = PROVOCATIONS[mistake]
    with pytest.raises(Exception) as theirs:
        provoke(LIBRARIES["jax"])
    assert built_in(theirs.value) is expected, "what the table says of jax.export"
    with pytest.raises(expected):
        provoke(jaxexp)


def test_an_error_that_is_not_built_in() -> None:
    """A constraint has a name that no shape has."""

    def provoke(library: Any) -> None:
        shape = library.symbolic_shape("batch, 4", constraints=["bacth >= 2"])
        library.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct(shape, np.float32))

    with pytest.raises(Exception, match="bacth") as theirs:
        provoke(LIBRARIES["jax"])
    assert not isinstance(theirs.value, ValueError), "then an ExportError is one, too"
    with pytest.raises(type(theirs.value), match="bacth") as ours:
        provoke(jaxexp)
    assert isinstance(ours.value, jaxexp.errors.ExportError)
    again = pickle.loads(pickle.dumps(ours.value))
    assert (type(again), str(again)) == (type(ours.value), str(ours.value))


def test_messages_of_these_errors() -> None:
    """Where the built-in type is new in this place, the message is still one sentence that says what to do."""
    with pytest.raises(jaxexp.errors.ExportError, match=r"there is none.*make_ir_context") as error:
        of_sin(jaxexp).mlir_module(serialized=False)
    assert "artifact" not in str(error.value), "nothing is wrong with it"
    with pytest.raises(jaxexp.errors.SerializationError) as error:
        of_dtype(jaxexp, "U3").serialize()
    assert str(error.value).startswith("cannot serialize in_avals[0]: the dtype dtype('<U3')")
    with pytest.raises(jaxexp.errors.ExportError, match=r"args: expected tuple of length 1, found tuple of length 2.*"):
        of_static(jaxexp).call(X, "how")


@each(
    "use, damage",
    [
        (use, damage)
        for use in (lambda e: e.call(X), lambda e: jax.jit(e.call)(X), lambda e: e.mlir_module())
        for damage in (lambda module: b"no module", lambda module: module[: len(module) // 2])
    ],
)
def test_damaged_modules(use: Callable[[Any], Any], damage: Callable[[bytes], bytes]) -> None:
    for library in LIBRARIES.values():
        with pytest.raises(RuntimeError):
            use(of_module(library, damage))
    with pytest.raises(jaxexp.errors.DeserializationError, match="mlir_module_serialized"):
        use(of_module(jaxexp, damage))


def test_a_module_of_other_bytes_than_were_written() -> None:
    blob = jaxexp.export(jax.jit(jnp.sin))(X).serialize()
    module = jaxexp.deserialize(bytes(blob)).mlir_module_serialized
    blob[bytes(blob).index(module) + len(module) // 2] ^= 1
    loaded = jaxexp.deserialize(blob)
    with pytest.raises(RuntimeError, match="mlir_module_serialized") as raised:
        loaded.call(X)
    assert isinstance(raised.value, jaxexp.errors.DeserializationError)


def test_module_in_the_current_context() -> None:
    from jax.interpreters import mlir

    for library in LIBRARIES.values():
        with mlir.make_ir_context() as context:
            module = of_sin(library).mlir_module(serialized=False)
            assert module.context is context or module.context == context
            assert "stablehlo.sine" in str(module)
