"""Rewrites LAPACK calls of old releases of JAX in today's form.

JAX once called the CPU's linear algebra through untyped custom calls. Their first operands were sizes and choices, and
their last results were scratch memory:

    %r:5 = stablehlo.custom_call @lapack_ssyevd(%lower, %batch_size, %n, %matrix)

The last release that wrote some of them is 0.4.38. Today's jaxlib has typed calls instead. They see the sizes in the
types, and take the choices as attributes:

    %r:3 = stablehlo.custom_call @lapack_ssyevd_ffi(%matrix) {backend_config = {mode = 86 : ui8, uplo = 76 : ui8}}

Both call the same routine of LAPACK with the same layouts in memory, so the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp import _jax
from jaxexp._errors import ModuleError

from . import mlir


def modernize(operation: Any, target: str) -> None:
    """Replaces an old call by today's; leaves others as they are."""
    routine = _ROUTINES.get(target)
    if routine is None:
        return
    old = _OldCall(operation, target)
    if routine.factor is not None:
        if len(old.arguments) <= routine.factor:  # the call already lacks the factor
            return
        factor = _constant(old.arguments[routine.factor])
        # As text, since not every JAX can read the value of a complex constant.
        if factor is None or not any(one in str(factor) for one in _ONES):
            raise old.error(f"scales its result, with operand {routine.factor}")
    with operation.location, _jax.ir.InsertionPoint(operation):
        _replace(old, routine)


def _replace(old: _OldCall, routine: _ModernCall) -> None:
    ir = _jax.ir
    operands = [old.arguments[i] for i in routine.arrays]
    layouts = [old.operand_layouts[i] for i in routine.arrays]
    types = [old.results[i].type for i in routine.results]
    attributes = {
        "call_target_name": ir.StringAttr.get(routine.target),
        "result_layouts": ir.ArrayAttr.get([old.result_layouts[i] for i in routine.results]),
        **routine.configuration(old),
    }
    if routine.aliased is not None:
        first = [0] if len(types) > 1 else []  # shares its memory with the operand
        alias = _jax.hlo.OutputOperandAlias.get(
            output_tuple_indices=first, operand_index=routine.aliased, operand_tuple_indices=[]
        )
        attributes["output_operand_aliases"] = ir.ArrayAttr.get([alias])
    if not all(type_.has_static_shape for type_ in types):
        shapes = [old.shape_of_result(i, operands[0]) for i in routine.results]
        attributes["indices_of_shape_operands"] = _integers(range(len(operands), len(operands) + len(shapes)))
        layouts += [_integers([0], ir.IndexType.get())] * len(shapes)
        operands += shapes
    attributes["operand_layouts"] = ir.ArrayAttr.get(layouts)
    new = ir.Operation.create("stablehlo.custom_call", results=types, operands=operands, attributes=attributes)
    for index, result in zip(routine.results, new.results, strict=True):
        old.results[index].replace_all_uses_with(result)
    if routine.status is not None:
        old.results[routine.status].replace_all_uses_with(old.zeros(routine.status, operands[0]))
    old.erase()


class _OldCall:
    """An old custom call, taken apart: its operands, except those that only say how large its results are, its results,
    and how both lie in memory.
    """

    def __init__(self, operation: Any, target: str) -> None:
        self._operation, self._target = operation, target
        self.results = list(operation.results)
        self.operand_layouts = list(self._layouts("operand_layouts"))
        self.result_layouts = list(self._layouts("result_layouts"))
        operands = list(operation.operands)
        indices: list[int] = []
        if "indices_of_shape_operands" in operation.attributes:
            indices = list(_jax.ir.DenseIntElementsAttr(operation.attributes["indices_of_shape_operands"]))
        self.arguments = [operand for i, operand in enumerate(operands) if i not in indices]
        self._shapes = [operands[i] for i in indices]

    def choice(self, index: int) -> int:
        """The value of an argument that chooses what to compute."""
        if (constant := _constant(self.arguments[index])) is None:
            raise self.error(f"computes its operand {index}")
        return int(next(iter(_jax.ir.DenseIntElementsAttr(constant.attributes["value"]))))

    def configuration(self) -> dict[str, Any]:
        names = ("api_version", "backend_config", "mhlo.backend_config")
        return {name: self._operation.attributes[name] for name in names if name in self._operation.attributes}

    def shape_of_result(self, index: int, matrix: Any) -> Any:
        """The sizes of a result, as a tensor, if its type does not have them all."""
        if self._shapes:
            return self._shapes[index]
        # Some old calls did not say the sizes of results of unknown sizes: these share the matrix's batch.
        type_, batch = self.results[index].type, matrix.type.rank - 2
        # jaxlib does not check the number of an axis.
        if batch < 0 or any(type_.is_dynamic_dim(axis) for axis in range(batch, type_.rank)):
            raise self.error(f"does not say how large its result {index} is")
        hlo, ir = _jax.hlo, _jax.ir
        vector = ir.RankedTensorType.get([1], ir.IntegerType.get_signless(32))
        sizes = [
            hlo.reshape(vector, hlo.get_dimension_size(matrix, axis))
            if type_.is_dynamic_dim(axis)
            else hlo.constant(ir.DenseElementsAttr.get(np.array([type_.shape[axis]], np.int32)))
            for axis in range(type_.rank)
        ]
        return hlo.concatenate(sizes, 0)

    def zeros(self, index: int, matrix: Any) -> Any:
        type_ = self.results[index].type
        if type_.has_static_shape:
            return _jax.hlo.constant(_jax.ir.DenseElementsAttr.get(np.zeros(type_.shape, np.int32)))
        shape = self.shape_of_result(index, matrix)
        return _jax.hlo.dynamic_broadcast_in_dim(type_, _jax.ir_constant(np.int32(0)), shape, [])

    def erase(self) -> None:
        if used := [i for i, result in enumerate(self.results) if mlir.is_used(result)]:
            raise self.error(f"lends its scratch memory, results {used}, to other operations")
        self._operation.erase()

    def _layouts(self, name: str) -> Any:
        if name not in self._operation.attributes:
            raise self.error(f"has no {name}")
        return _jax.ir.ArrayAttr(self._operation.attributes[name])

    def error(self, problem: str) -> ModuleError:
        return ModuleError(
            "mlir_module_serialized",
            f"a call of {self._target} as a release of JAX wrote it, which becomes today's",
            f"one that {problem}",
        )


def _constant(value: Any) -> Any:
    """The operation that makes a value, if it is a constant; otherwise None."""
    operation = mlir.origin(value)
    return operation if operation is not None and operation.name == "stablehlo.constant" else None


_ONES = ("dense<1.000000e+00>", "dense<(1.000000e+00,0.000000e+00)>")


def _integers(values: Iterable[int], element_type: Any = None) -> Any:
    return _jax.ir.DenseIntElementsAttr.get(np.array(list(values), np.int64), type=element_type)


def _typed(choices: Mapping[str, int | str]) -> dict[str, Any]:
    """The configuration of a typed call. Letters become the numbers that LAPACK takes for them."""
    ir = _jax.ir
    letter, number = ir.IntegerType.get_unsigned(8), ir.IntegerType.get_signless(32)
    config = {
        name: ir.IntegerAttr.get(letter, ord(value)) if isinstance(value, str) else ir.IntegerAttr.get(number, value)
        for name, value in choices.items()
    }
    return {"api_version": ir.IntegerAttr.get(number, 4), "backend_config": ir.DictAttr.get(config)}


class _ModernCall(NamedTuple):
    """How an old call of a routine corresponds to today's."""

    target: str
    arrays: Sequence[int]  # the old arguments that the new call takes
    results: Sequence[int]  # for each result of the new call, the index of the old one
    # The attributes by which the new call makes the choices of the old one.
    configuration: Callable[[_OldCall], dict[str, Any]] = lambda old: _typed({})
    aliased: int | None = 0  # the operand of the new call that its first result overwrites
    status: int | None = None  # the old result that the new call lacks, because it only reports invalid arguments
    factor: int | None = None  # the old argument that scaled the result, always 1


def _triangle(argument: int, **others: str) -> Callable[[_OldCall], dict[str, Any]]:
    return lambda old: _typed({**others, "uplo": "L" if old.choice(argument) else "U"})


def _letters(**arguments: int) -> Callable[[_OldCall], dict[str, Any]]:
    return lambda old: _typed({name: chr(old.choice(argument)) for name, argument in arguments.items()})


def _svd(old: _OldCall) -> dict[str, Any]:
    full_matrices, compute_uv = old.choice(0), old.choice(1)
    return _typed({"mode": "N" if not compute_uv else "A" if full_matrices else "S"})


def _hessenberg(old: _OldCall) -> dict[str, Any]:
    return _typed({"low": old.choice(1), "high": old.choice(2)})


def _solve(old: _OldCall) -> dict[str, Any]:
    left, lower, transposed, unit = map(old.choice, range(4))
    return _typed(
        {
            "side": "L" if left else "R",
            "uplo": "L" if lower else "U",
            "trans_x": "NTC"[transposed],  # unchanged, transposed, and also conjugated
            "diag": "U" if unit else "N",
        }
    )


def _routines() -> dict[str, _ModernCall]:
    table = {}
    for precision in "sdcz":
        real = precision in "sd"

        def add(routine: str, *args: Any, precision: str = precision, library: str = "lapack", **kwargs: Any) -> None:
            target = f"lapack_{precision}{routine}_ffi"
            table[f"{library}_{precision}{routine}"] = _ModernCall(target, *args, **kwargs)

        add("potrf", [3], [0, 1], _triangle(0))
        add("getrf", [3], [0, 1, 2])
        add("geqrf", [4], [0, 1], status=2)
        add("orgqr" if real else "ungqr", [5, 6], [0], status=1)
        add("syevd" if real else "heevd", [3], [0, 1, 2], _triangle(0, mode="V"))
        add("gesdd", [6], [0, 1, 2, 3, 4], _svd)
        eigenvalues = [3, 4] if real else [2]  # real and imaginary parts, or complex numbers
        vectors = [eigenvalues[-1] + i for i in (1, 2, 3)]
        add("geev", [4], [*eigenvalues, *vectors], _letters(compute_left=2, compute_right=3), aliased=None)
        eigenvalues = [1, 2] if real else [2]
        add("gees", [4], [0, 3, *eigenvalues, 4, 5], _letters(mode=2, sort=3))
        add("gehrd", [6], [0, 1, 2], _hessenberg)
        add("sytrd" if real else "hetrd", [5], [0, 1, 2, 3, 4], _triangle(1))
        add("trsm", [8, 9], [0], _solve, library="blas", aliased=1, factor=7)
        # JAX 0.5 wrote a typed call with the factor.
        typed = f"lapack_{precision}trsm_ffi"
        table[typed] = _ModernCall(typed, [0, 1], [0], _OldCall.configuration, aliased=1, factor=2)
    return table


_ROUTINES = _routines()
