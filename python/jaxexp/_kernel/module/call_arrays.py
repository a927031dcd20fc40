"""The arrays of custom calls whose code trusts their sizes: LAPACK's, and some others that JAX keeps stable.

jaxlib's kernels of LAPACK take sizes from their operands, and write to results of any size as if they had the right
one. So a policy compares the types in a module with the table here. Sizes that a module leaves open are known when it
is called: an assertion compares them then, as JAX's assertions compare its dimension variables.

Calls of old releases have today's form before they are looked at (`lapack.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxexp import _jax
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.words import dtype_and_shape
from jaxexp._kernel.function.data import ExportedData

from . import mlir


class _Routine(NamedTuple):
    """The arrays of a call, or of one with some choices among its attributes.

    An array is a letter for its dtype and letters for its sizes, before which the dimensions of a batch come. T is the
    dtype of the target, or of its first operand; R and C are the real and the complex one of that precision; i is
    int32, and u is uint32. Of the sizes, k is the smaller of m and n, and l is n - 1. Others may be any, but each
    letter stands for one size.
    """

    arrays: str  # the operands, ">", and the results
    choices: Mapping[str, str | bool] = {}  # the letters that an attribute may be, or its truth value
    numbers: Mapping[str, str] = {}  # the sizes that attributes repeat. "1" is one
    at_most: Sequence[tuple[str, str]] = ()  # pairs of sizes, of which the first may not be larger
    overwritten: Mapping[int, int] = {}  # operands that become results, by their numbers, if nothing is computed

    @property
    def operands(self) -> list[str]:
        return self.arrays.partition(">")[0].split()

    @property
    def results(self) -> list[str]:
        return self.arrays.partition(">")[2].split()


@functools.cache
def _targets() -> dict[str, list[_Routine]]:
    """For each target, what it may be called with: one for each set of choices."""
    triangle, solve = {"uplo": "LU"}, {"uplo": "LU", "trans_x": "NTC", "diag": "NU"}
    singular_values = [
        _Routine("Tmn > Tmn Rk Tmm Tnn i", {"mode": "A"}),
        _Routine("Tmn > Tmn Rk Tmk Tkn i", {"mode": "S"}),
        _Routine("Tmn > Tmn Rk Tab Tcd i", {"mode": "N"}),  # vectors that are not computed
    ]
    householder = [_Routine("Tmq Tp > Tmq", at_most=[("p", "q"), ("q", "m")])]
    both = {
        "potrf": [_Routine("Tnn > Tnn i", triangle)],
        "getrf": [_Routine("Tmn > Tmn ik i")],
        "geqrf": [_Routine("Tmn > Tmn Tk")],
        "geqp3": [_Routine("Tmn in > Tmn in Tk", overwritten={1: 1})],
        "gehrd": [_Routine("Tnn > Tnn Tl i", numbers={"low": "1", "high": "n"})],
        "gesdd": singular_values,
        "gesvd": singular_values,
        "trsm": [
            _Routine("Tmm Tmn > Tmn", {"side": "L", **solve}),
            _Routine("Tnn Tmn > Tmn", {"side": "R", **solve}),
        ],
        "gtsv": [_Routine("Tm Tm Tm Tmn > Tm Tm Tm Tmn i")],
    }
    table = {}
    for precision in "sdcz":
        real = precision in "sd"
        values = "Tn Tn" if real else "Tn"  # real and imaginary parts of eigenvalues
        these = {
            **both,
            "orgqr" if real else "ungqr": householder,
            "ormqr" if real else "unmqr": [
                _Routine("Tmq Tp Tmn > Tmn", {"left": True}, at_most=[("p", "q"), ("p", "m")], overwritten={0: 2}),
                _Routine("Tnq Tp Tmn > Tmn", {"left": False}, at_most=[("p", "q"), ("p", "n")], overwritten={0: 2}),
            ],
            "syevd" if real else "heevd": [_Routine("Tnn > Tnn Rn i", {"mode": "NV", **triangle})],
            "sytrd" if real else "hetrd": [_Routine("Tnn > Tnn Rn Rl Tl i", triangle)],
            "geev": [_Routine(f"Tnn > {values} Cnn Cnn i", {"compute_left": "NV", "compute_right": "NV"})],
            "gees": [_Routine(f"Tnn > Tnn Tnn {values} i i", {"mode": "NV", "sort": "N"})],
        }
        table.update({f"lapack_{precision}{routine}_ffi": forms for routine, forms in these.items()})
    # XLA takes these apart on all platforms or on TPUs, and reads operands that may be missing.
    table["Qr"] = [_Routine("Tmn > Tmn Tk")]
    table["ProductOfElementaryHouseholderReflectors"] = householder
    table["Eigh"] = [_Routine("Tnn > Tnn Rn")]
    table["LuDecomposition"] = [_Routine("Tmn > Tmn ik im")]
    # The other kernels for GPUs compare sizes themselves.
    table["cusparse_gtsv2_ffi"] = [_Routine("Tm Tm Tm Tmn > Tmn")]
    table["cu_threefry2x32_ffi"] = table["hip_threefry2x32_ffi"] = [_Routine("u u u u > u u")]
    return table


# Parts of the targets, and of what calls of old releases name them.
_NAMES = ("lapack_", "blas_", "Qr", "Householder", "Eigh", "LuDecomposition", "gtsv2", "threefry2x32")
_LARGEST = 2**31 - 1
_DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "i32": "int32",
    "ui32": "uint32",
}
_OF_LETTER = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
_REAL = {"complex64": "float32", "complex128": "float64"}
_COMPLEX = {real: complex_ for complex_, real in _REAL.items()}


class Wrong(NamedTuple):
    """What is wrong with a call, in words."""

    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what} have to be {self.expected}, and are {self.found}"


class _Size(NamedTuple):
    """A size: a number, or if it is open, None and the axis of a value."""

    number: int | None
    value: Any = None
    axis: int = 0


class _Relation(NamedTuple):
    """`left` and `more` are together equal to the smallest of `right`, or at most that."""

    left: _Size
    right: Sequence[_Size]
    more: int = 0
    at_most: bool = False

    def is_violated(self) -> bool:
        """Whether the sizes that are known violate it, or are too large for 32 bits, as LAPACK's are."""
        right = [size.number for size in self.right if size.number is not None]
        if any(not 0 <= number <= _LARGEST for number in (self.left.number or 0, *right)):
            return True
        if self.left.number is None or not right:
            return False
        left = self.left.number + self.more
        return left > min(right) or (not self.at_most and len(right) == len(self.right) and left < min(right))

    def is_open(self) -> bool:
        return any(size.number is None for size in (self.left, *self.right))


class _Call:
    def __init__(self, operation: Any, target: str) -> None:
        attributes = operation.attributes
        of_shapes: Any = None
        if "indices_of_shape_operands" in attributes:
            of_shapes = attributes["indices_of_shape_operands"]
        indices = list(of_shapes) if isinstance(of_shapes, _jax.ir.DenseIntElementsAttr) else []
        self.target, self.forms = target, _targets()[target]
        self.operands = [operand for i, operand in enumerate(operation.operands) if i not in indices]
        self.results = list(operation.results)
        dtype = self._dtype(self.operands[0]) if self.operands else "?"
        if target.startswith("lapack_"):
            dtype = _OF_LETTER[target.removeprefix("lapack_")[0]]
        real, complex_ = _REAL.get(dtype, dtype), _COMPLEX.get(dtype, dtype)
        self.dtypes = {"T": dtype, "R": real, "C": complex_, "i": "int32", "u": "uint32"}
        self._attributes = attributes
        self.choices = choices(attributes) if any(form.choices or form.numbers for form in self.forms) else {}

    def why_wrong(self) -> Wrong | None:
        if self.choices is None:
            return Wrong("attributes", "in one dictionary", "in another form")
        routine = self.routine()
        if routine is None:
            names = sorted({name for form in self.forms for name in (*form.choices, *form.numbers)})
            allowed = (f"{name} {' or '.join(dict.fromkeys(self._allowed(name)))}" for name in names)
            return Wrong("choices", _list(allowed), _list(f"{name} {_shown(self.choices.get(name))}" for name in names))
        relations = self.relations(routine)
        if relations is None or any(relation.is_violated() for relation in relations):
            return Wrong("arrays", self._expected(routine), self._found(routine))
        if self.is_open() and any(size.number == 0 for size in self.sizes_of_matrices()):
            return Wrong("arrays", "not empty if one of their sizes is open", self._found(routine))
        batch = self._rank(self.operands[0]) - len(routine.operands[0][1:])
        declared = self._declared_batch()
        if declared is not None and declared != str(batch):  # by which the partitioner divides the arrays
            return Wrong("attributes", f"num_batch_dims {batch}", f"num_batch_dims {declared}")
        return None

    def routine(self) -> _Routine | None:
        return next((form for form in self.forms if self._chosen(form)), None)

    def relations(self, routine: _Routine) -> list[_Relation] | None:
        """What has to hold for sizes; None where arrays are missing, or have other dtypes or ranks."""
        sizes = self._sizes(routine)
        return None if sizes is None else list(_relations(sizes, routine.at_most))

    def sizes_of_matrices(self) -> list[_Size]:
        """If one is 0, there is nothing to compute, and LAPACK writes behind an array, or complains, or fails."""
        routine = self.routine() if self.target.startswith("lapack_") else None
        sizes = self._sizes(routine) if routine else None
        return [found[0] for name, found in sizes.items() if name in ("m", "n", "q")] if sizes else []

    def is_open(self) -> bool:
        """Whether sizes of its results are not known yet."""
        return not all(_jax.ir.RankedTensorType(value.type).has_static_shape for value in self.results)

    def _sizes(self, routine: _Routine) -> dict[str, list[_Size]] | None:
        arrays = [
            *zip(routine.operands, self.operands, strict=False),
            *zip(routine.results, self.results, strict=False),
        ]
        if len(self.operands) != len(routine.operands) or len(self.results) != len(routine.results):
            return None
        sizes: dict[str, list[_Size]] = {"1": [_Size(1)]}
        batch = self._rank(self.operands[0]) - len(routine.operands[0][1:])
        for array, value in arrays:
            names = [*(f"batch {axis}" for axis in range(batch)), *array[1:]]
            if batch < 0 or self._rank(value) != len(names) or self._dtype(value) != self.dtypes[array[0]]:
                return None
            for axis, name in enumerate(names):
                sizes.setdefault(name, []).append(_size(value, axis))
        for attribute, name in routine.numbers.items():
            sizes[name].append(_Size((self.choices or {})[attribute]))
        return sizes

    def _chosen(self, routine: _Routine) -> bool:
        found = self.choices or {}
        return all(found.get(name) in _numbers(allowed) for name, allowed in routine.choices.items()) and all(
            name in found for name in routine.numbers
        )

    def _allowed(self, name: str) -> Iterator[str]:
        for form in self.forms:
            if name in form.numbers:
                yield form.numbers[name]
            else:
                yield from map(_shown, _numbers(form.choices[name]))

    def _declared_batch(self) -> str | None:
        if "mhlo.frontend_attributes" not in self._attributes:
            return None
        frontend = _jax.ir.DictAttr(self._attributes["mhlo.frontend_attributes"])
        if "num_batch_dims" not in frontend:
            return None
        declared = frontend["num_batch_dims"]
        return _jax.ir.StringAttr(declared).value if isinstance(declared, _jax.ir.StringAttr) else str(declared)

    @staticmethod
    def _rank(value: Any) -> int:
        return _jax.ir.RankedTensorType(value.type).rank if _is_array(value.type) else -1

    @staticmethod
    def _dtype(value: Any) -> str:
        if not _is_array(value.type):
            return str(value.type)
        element = str(_jax.ir.RankedTensorType(value.type).element_type)
        return _DTYPES.get(element, element)

    def _expected(self, routine: _Routine) -> str:
        def shown(array: str) -> str:
            sizes = ["...", *({"k": "min(m, n)", "l": "n - 1"}.get(letter, letter) for letter in array[1:])]
            return dtype_and_shape(self.dtypes[array[0]], sizes)

        text = f"{_list(map(shown, routine.operands))} -> {_list(map(shown, routine.results))}"
        conditions = [f"{smaller} <= {larger}" for smaller, larger in routine.at_most]
        conditions += [f"{attribute} = {name}" for attribute, name in routine.numbers.items()]
        return f"{text} with {_list(conditions)}" if conditions else text

    def _found(self, routine: _Routine) -> str:
        def shown(value: Any) -> str:
            sizes = [_size(value, axis).number for axis in range(self._rank(value))]
            return dtype_and_shape(self._dtype(value), ("?" if size is None else size for size in sizes))

        text = f"{_list(map(shown, self.operands))} -> {_list(map(shown, self.results))}"
        numbers = [f"{name} = {(self.choices or {}).get(name)}" for name in routine.numbers]
        return f"{text} with {_list(numbers)}" if numbers else text


def choices(attributes: Any) -> dict[str, int] | None:
    """What the attributes of a call of a routine tell it, those that are numbers; None where XLA might read others than
    these.
    """
    ir = _jax.ir
    found = [attributes[name] for name in ("backend_config", "mhlo.backend_config") if name in attributes]
    if len(found) > 1 or not all(isinstance(attribute, ir.DictAttr) for attribute in found):
        return None
    numbers = {}
    for name, attribute in mlir.items(ir.DictAttr(found[0])) if found else ():
        if isinstance(attribute, ir.BoolAttr):
            numbers[name] = int(ir.BoolAttr(attribute).value)
        elif isinstance(attribute, ir.IntegerAttr):
            numbers[name] = int(ir.IntegerAttr(attribute).value)
    return numbers


def why_wrong(operation: Any, target: str) -> Wrong | None:
    """What is wrong with the arrays of a custom call; None if nothing that is known, or if its target has no table."""
    return _Call(operation, target).why_wrong() if target in _targets() else None


def without_computing(operation: Any, target: str) -> list[Any] | None:
    """The results of a call of LAPACK, of which `why_wrong` says nothing, if its matrices are empty: operands, and None
    for zeros. None if there is something to compute.
    """
    call = _Call(operation, target) if target in _targets() else None
    routine = call.routine() if call else None
    if not call or not routine or not any(size.number == 0 for size in call.sizes_of_matrices()):
        return None
    kept = routine.overwritten
    return [call.operands[kept[number]] if number in kept else None for number in range(len(call.results))]


def give_layouts(operation: Any, target: str) -> None:
    """Has a call say the layouts of its arrays, as JAX does. XLA then compares the arrays with their types."""
    if target in _targets() and "operand_layouts" not in operation.attributes:
        for name, values in (("operand_layouts", operation.operands), ("result_layouts", operation.results)):
            orders = [np.arange(_jax.ir.RankedTensorType(value.type).rank)[::-1].astype(np.int64) for value in values]
            row_major = [_jax.ir.DenseElementsAttr.get(order, type=_jax.ir.IndexType.get()) for order in orders]
            operation.attributes[name] = _jax.ir.ArrayAttr.get(row_major)


def assert_open_sizes(exported: ExportedData, module: Any) -> None:
    """Adds assertions about the sizes that the module of an exported function leaves open in such calls."""
    if not module_head.may_name(exported.mlir_module_serialized, *_NAMES):
        return
    for target, operation in mlir.custom_calls(module):
        if target not in _targets():
            continue
        call = _Call(operation, target)
        routine = call.routine()
        relations = (call.relations(routine) if routine else None) or ()
        if not any(relation.is_violated() for relation in relations):  # a policy refuses what is violated
            others = f"The custom call {target} has arrays of other sizes than its code reads and writes"
            _assert(operation, relations, others)


def assert_not_empty(operation: Any, target: str) -> None:
    """Adds an assertion that matrices of a call of LAPACK are not empty, where their sizes are open."""
    if target in _targets():
        sizes = _Call(operation, target).sizes_of_matrices()
        relations = [_Relation(_Size(1), [size], at_most=True) for size in sizes]
        _assert(operation, relations, f"The custom call {target} has empty matrices")


def _assert(operation: Any, relations: Sequence[_Relation], message: str) -> None:
    still_open = [relation for relation in relations if relation.is_open()]
    if not still_open:
        return
    with operation.location, _jax.ir.InsertionPoint.after(operation):
        mlir.assert_all(list(map(_holds, still_open)), message)


def _holds(relation: _Relation) -> Any:
    hlo = _jax.hlo

    def value(size: _Size) -> Any:
        if size.number is None:
            return hlo.get_dimension_size(size.value, size.axis)
        return _jax.ir_constant(np.int32(size.number))

    left, right = value(relation.left), value(relation.right[0])
    if relation.more:
        left = hlo.add(left, value(_Size(relation.more)))
    for size in relation.right[1:]:
        right = hlo.minimum(right, value(size))
    direction = hlo.ComparisonDirectionAttr.get("LE" if relation.at_most else "EQ")
    return hlo.compare(left, right, direction, compare_type=hlo.ComparisonTypeAttr.get("SIGNED"))


def _relations(sizes: Mapping[str, Sequence[_Size]], at_most: Sequence[tuple[str, str]]) -> Iterator[_Relation]:
    for name, found in sizes.items():
        if name == "k":
            yield from (_Relation(size, [sizes["m"][0], sizes["n"][0]]) for size in found)
        elif name == "l":
            yield from (_Relation(size, [sizes["n"][0]], more=1) for size in found)
        else:
            yield from (_Relation(size, [found[0]]) for size in found[1:])
    for smaller, larger in at_most:
        yield _Relation(sizes[smaller][0], [sizes[larger][0]], at_most=True)


def _is_array(type_: Any) -> bool:
    """Whether it is an array whose size is what its dimensions say: one without bounds."""
    return isinstance(type_, _jax.ir.RankedTensorType) and _jax.ir.RankedTensorType(type_).encoding is None


def _size(value: Any, axis: int) -> _Size:
    tensor = _jax.ir.RankedTensorType(value.type)
    return _Size(None, value, axis) if tensor.is_dynamic_dim(axis) else _Size(tensor.get_dim_size(axis))


def _numbers(allowed: str | bool) -> list[int]:
    return [int(allowed)] if isinstance(allowed, bool) else list(map(ord, allowed))


def _shown(number: int | None) -> str:
    return "missing" if number is None else repr(chr(number)) if 32 < number < 127 else str(number)


def _list(texts: Any) -> str:
    return ", ".join(texts)
