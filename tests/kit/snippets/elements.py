"""Snippets of operations on each element."""

from __future__ import annotations

import numpy as np

from .snippet import snippet

_NUMBERS = [-2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 2.5, np.inf, -np.inf, np.nan]
M = len(_NUMBERS)
N = f"{M}xf32"
for _name in (
    "abs ceil floor negate sign round_nearest_afz round_nearest_even cbrt cosine exponential exponential_minus_one log "
    "log_plus_one logistic rsqrt sine sqrt tan tanh"
).split():
    snippet(_name, N, N, f"%r = stablehlo.{_name} %0 : <<{N}>>", _NUMBERS)
for _name in "add subtract multiply divide maximum minimum remainder power atan2".split():
    snippet(_name, f"{N} {N}", N, f"%r = stablehlo.{_name} %0, %1 : <<{N}>>", _NUMBERS, _NUMBERS[3:] + _NUMBERS[:3])
for _name in "add subtract multiply divide maximum minimum remainder and or xor".split():
    snippet(f"{_name} of integers", "6xi32 6xi32", "6xi32", f"%r = stablehlo.{_name} %0, %1 : <<6xi32>>",
            [-7, -7, 7, 0, 12, 5], [2, -3, -2, 5, 10, 6])  # fmt: skip
for _name in "shift_left shift_right_arithmetic shift_right_logical".split():
    snippet(_name, "4xi32 4xi32", "4xi32", f"%r = stablehlo.{_name} %0, %1 : <<4xi32>>", [-9, 9, 5, -1], [1, 2, 33, 31])
for _name in "and or xor".split():
    snippet(f"{_name} of bools", "4xi1 4xi1", "4xi1", f"%r = stablehlo.{_name} %0, %1 : <<4xi1>>",
            [0, 0, 1, 1], [0, 1, 0, 1])  # fmt: skip
for _name in "not popcnt count_leading_zeros".split():
    snippet(_name, "4xui16", "4xui16", f"%r = stablehlo.{_name} %0 : <<4xui16>>", [0, 1, 300, 65535])
snippet("not of bools", "2xi1", "2xi1", "%r = stablehlo.not %0 : <<2xi1>>", [0, 1])
snippet("is_finite", N, f"{M}xi1", "%r = stablehlo.is_finite %0 :", _NUMBERS)
for _name in "real imag".split():
    snippet(_name, "3xcomplex<f32>", "3xf32", f"%r = stablehlo.{_name} %0 :")
snippet("complex", "3xf32 3xf32", "3xcomplex<f32>", "%r = stablehlo.complex %0, %1 : tensor<3xcomplex<f32>>")
snippet("clamp", f"f32 {N} f32", N, "%r = stablehlo.clamp %0, %1, %2 :", -0.75, _NUMBERS, 0.75)
snippet("select", "4xi1 4xf32 4xf32", "4xf32", "%r = stablehlo.select %0, %1, %2 : <<4xi1>>, <<4xf32>>")
snippet("select of all", "i1 4xf32 4xf32", "4xf32", "%r = stablehlo.select %0, %1, %2 : <<i1>>, <<4xf32>>",
        1, [1, 2, 3, 4], [5, 6, 7, 8])  # fmt: skip
for _order in "EQ NE LT LE GT GE".split():
    snippet(f"compare {_order}", f"{N} {N}", f"{M}xi1",
            f"%r = stablehlo.compare {_order}, %0, %1, FLOAT :",
            _NUMBERS, [*_NUMBERS[:3], 0.0, -0.0, *_NUMBERS[7:], 1.0, 2.0])  # fmt: skip
    snippet(f"compare {_order} in total order", f"{N} {N}", f"{M}xi1",
            f"%r = stablehlo.compare {_order}, %0, %1, TOTALORDER :",
            _NUMBERS, [*_NUMBERS[:3], 0.0, -0.0, *_NUMBERS[7:], 1.0, 2.0])  # fmt: skip
    snippet(f"compare {_order} of unsigned", "3xui8 3xui8", "3xi1",
            f"%r = stablehlo.compare {_order}, %0, %1, UNSIGNED :",
            [1, 200, 5], [200, 1, 5])  # fmt: skip
for _types in ["f32 i32", "f32 i1", "i32 f32", "i32 i8", "f32 bf16", "i1 i32", "f32 f16", "bf16 f8E4M3FN", "i32 i4"]:
    _from, _to = _types.split()
    _values = [0, 1] if _from == "i1" else [-3, 0, 1, 2, 100] if _from == "i32" else [-2.7, -0.0, 0.49, 1.5, 90.2]
    _shape = f"{len(_values)}x"
    snippet(f"convert {_types}", _shape + _from, _shape + _to, "%r = stablehlo.convert %0 :", _values)
snippet("bitcast_convert", "3xf32", "3xi32", "%r = stablehlo.bitcast_convert %0 :")
snippet("bitcast_convert to halves", "3xf32", "3x2xi16", "%r = stablehlo.bitcast_convert %0 :")
snippet("reduce_precision", "8xf32", "8xf32", "%r = stablehlo.reduce_precision %0, format = e5m4 : <<8xf32>>",
        [1.03, 2.07, 65504.0, 1e-6, -3.3, 0.1, 7e4, -1.2345])  # fmt: skip
