"""What the format, or its readers' limits, cannot hold is refused when it is written, and the limit is named."""

from __future__ import annotations

import dataclasses
import mmap
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _native
from jaxexp._kernel.codec import binding
from kit.corpus import CASES, arr, export_with, f32, spec

GIGABYTE = 2**30

sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))  # nested trees are flattened by recursion


def exported() -> Any:
    return export_with(jaxexp, CASES["sin"].build())


def refused(changed: Any, limit: str, vjp_order: int = 0) -> None:
    with pytest.raises(jaxexp.SerializationError, match=limit):
        changed.serialize(vjp_order=vjp_order)


def of_shape(*shape: Any) -> Any:
    aval = exported().in_avals[0].update(shape=shape)
    return dataclasses.replace(exported(), in_avals=(aval,), out_avals=(aval,), uses_global_constants=True)


# --- counts ---------------------------------------------------------------------------------------------------------


def with_arguments(count: int) -> Any:
    tree = jax.tree_util.tree_structure(((tuple(range(count)),), {}))
    one = exported()
    return dataclasses.replace(
        one,
        in_tree=tree,
        in_avals=one.in_avals * count,
        _in_named_shardings=(None,) * count,
        module_kept_var_idx=tuple(range(count)),
    )


def test_the_most_kept_arguments() -> None:
    """Indices of kept arguments have 16 bits."""
    most = with_arguments(2**16)
    loaded = jaxexp.deserialize(most.serialize())
    assert loaded.module_kept_var_idx == most.module_kept_var_idx
    refused(with_arguments(2**16 + 1), "module_kept_var_idx: .* the one with index 65536: let it take fewer arrays")


def test_more_arguments_of_which_few_are_kept() -> None:
    many = dataclasses.replace(with_arguments(2**16 + 9), module_kept_var_idx=(0, 2**16 - 1))
    assert len(jaxexp.deserialize(many.serialize()).in_avals) == 2**16 + 9


@pytest.mark.parametrize("kept", [(1, 0), (0, 0), (5,)], ids=["unsorted", "twice", "beyond the arguments"])
def test_kept_arguments_that_no_reader_takes(kept: tuple[int, ...]) -> None:
    refused(dataclasses.replace(with_arguments(3), module_kept_var_idx=kept), "module_kept_var_idx")


@pytest.mark.parametrize("count", [0, -1, 2**32, 2**80])
def test_device_counts(count: int) -> None:
    refused(dataclasses.replace(exported(), nr_devices=count), "nr_devices: .* 1 to 4294967295, the most that")


@pytest.mark.parametrize("version", [-1, 2**16, 5, 100])
def test_calling_conventions(version: int) -> None:
    refused(dataclasses.replace(exported(), calling_convention_version=version), "calling_convention_version: .* to ")


def test_vjps() -> None:
    one = exported()
    binding.bind()  # the encoder is called directly, perhaps before anything else
    with pytest.raises(jaxexp.SerializationError, match="1 to 65 functions"):
        _native.encode([one] * 66, jax.__version__, _native.Form(), None)


def test_mesh_axes() -> None:
    def with_axes(count: int) -> Any:
        names = tuple(f"axis{i}" for i in range(count))
        mesh = AbstractMesh((1,) * count, names, axis_types=(AxisType.Auto,) * count)
        return dataclasses.replace(exported(), _in_named_shardings=(NamedSharding(mesh, P(names[-1])),))

    loaded = jaxexp.deserialize(with_axes(256).serialize())
    assert loaded._in_named_shardings == with_axes(256)._in_named_shardings
    refused(with_axes(257), "at most 256 mesh axes, found 257")


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platforms", [(), ("cpu", "cpu"), ("",)], ids=["none", "twice", "empty"])
def test_platforms(platforms: tuple[str, ...]) -> None:
    refused(dataclasses.replace(exported(), platforms=platforms, uses_global_constants=True), "platforms: .*found")


def test_lone_surrogates() -> None:
    refused(dataclasses.replace(exported(), fun_name="\ud800"), "fun_name: .*lone surrogates")


def test_long_names() -> None:
    name = "n" * 2**20
    assert jaxexp.deserialize(dataclasses.replace(exported(), fun_name=name).serialize()).fun_name == name


def test_missing_global_constants() -> None:
    """Modules of symbolic shapes and of several platforms get constants from their callers."""
    for change in ({"platforms": ("cpu", "tpu")}, {"in_avals": of_shape(*jaxexp.symbolic_shape("a")).in_avals}):
        refused(dataclasses.replace(exported(), **change), "uses_global_constants: the format holds true")


# --- dimensions -----------------------------------------------------------------------------------------------------


def test_sizes() -> None:
    assert jaxexp.deserialize(of_shape(2**63 - 1).serialize()).in_avals[0].shape == (2**63 - 1,)
    for size in (2**63, 2**200):
        refused(of_shape(size), r"in_avals\[0\]: a dimension .* to 9223372036854775807, the most that the format holds")


def symbolic(text: str) -> Any:
    return of_shape(*jaxexp.symbolic_shape(text))


def nested(depth: int) -> str:
    return "floordiv(" * depth + "a" + " + 1, 2)" * depth


FITS = {
    "power": "a^63",
    "nesting": nested(64),
    "coefficient": f"{2**63 - 1}*a",
    "length": " + ".join(f"mod(variable{i}, 3)" for i in range(600)),
}
TOO_MUCH = {
    "power": ("a^64", "powers of at most 63"),
    "nesting": (nested(65), "at most 64 nested operations"),
    "coefficient": (f"{2**63}*a", "numbers fit into 63 bits"),
    "constant": (f"a + {2**64}", "numbers fit into 63 bits"),
    "length": (" + ".join(f"variable{i}" for i in range(1500)), "at most 16384 characters"),
}


@pytest.mark.parametrize("what", FITS)
def test_the_largest_expressions(what: str) -> None:
    original = symbolic(FITS[what])
    loaded = jaxexp.deserialize(original.serialize())
    assert str(loaded.in_avals[0].shape[0]) == str(original.in_avals[0].shape[0])


@pytest.mark.parametrize("what", TOO_MUCH)
def test_expressions_that_are_too_large(what: str) -> None:
    text, limit = TOO_MUCH[what]
    refused(symbolic(text), limit)


# --- trees ----------------------------------------------------------------------------------------------------------


def test_levels_of_a_tree() -> None:
    def of_levels(levels: int) -> Any:
        """A tree whose leaf lies so many levels deep, the pair of arguments and keywords included."""
        argument: Any = 0
        for _ in range(levels - 3):
            argument = (argument,)
        return dataclasses.replace(exported(), in_tree=jax.tree_util.tree_structure(((argument,), {})))

    assert jaxexp.deserialize(of_levels(1000).serialize()).in_tree == of_levels(1000).in_tree
    refused(of_levels(1001), "in_tree: the tree has more than 1000 levels")


def test_a_tree_that_nobody_calls_with() -> None:
    tree = jax.tree_util.tree_structure([0])
    refused(dataclasses.replace(exported(), in_tree=tree), "in_tree: .*tuple of arguments and the dict of keyword")


# --- two gigabytes --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.maxsize < 2**32, reason="a 32-bit process has no room for such a module")
@pytest.mark.parametrize("size", [2 * GIGABYTE - 4096, 2 * GIGABYTE, 3 * GIGABYTE, 4 * GIGABYTE + 5])
def test_modules_of_two_gigabytes(size: int, tmp_path: Any) -> None:
    """Pages of this memory are never written, and the writer refuses before it reads one."""
    with mmap.mmap(-1, size) as module:
        large = dataclasses.replace(exported(), mlir_module_serialized=memoryview(module))
        if size < 2 * GIGABYTE:
            # Copying it would take the memory, laying it out does not.
            parts = list(_native.EncodedParts([large], jax.__version__, _native.Form(), None))
            assert sum(memoryview(part).nbytes for part in parts) < 2 * GIGABYTE
            del parts
        else:
            refused(large, "2 GiB or more, beyond the format")
            with pytest.raises(jaxexp.SerializationError, match="2 GiB or more"):
                large.save(tmp_path / "f")
            assert list(tmp_path.iterdir()) == []
        del large


def test_metadata_and_module_together() -> None:
    """Neither is too large by itself."""
    with mmap.mmap(-1, 2 * GIGABYTE - 4096) as module:
        large = dataclasses.replace(exported(), mlir_module_serialized=memoryview(module), fun_name="n" * 2**16)
        refused(large, "2 GiB or more, beyond the format")
        with pytest.raises(jaxexp.SerializationError, match="2 GiB or more"):
            _native.EncodedParts([large], jax.__version__, _native.Form(), None)
        del large


def test_modules_of_vjps_count_together() -> None:
    with mmap.mmap(-1, GIGABYTE) as module:
        one = dataclasses.replace(
            jaxexp.export(jax.jit(jnp.sin))(spec((), f32)), mlir_module_serialized=memoryview(module)
        )
        vjp = dataclasses.replace(one.vjp(), mlir_module_serialized=memoryview(module))
        with pytest.raises(jaxexp.SerializationError, match="2 GiB or more"):
            _native.EncodedParts([one, vjp], jax.__version__, _native.Form(), None)
        del one, vjp


def test_nothing_is_wrong_with_the_original() -> None:
    """What the functions above change."""
    assert jaxexp.deserialize(exported().serialize(vjp_order=1)).call(arr(4)).shape == (4,)
