"""Snippets of operations with regions, of calls, and of what is not written element by element."""

from __future__ import annotations

import numpy as np

from .snippet import snippet

# --- sort

_COMPARE = "%s = stablehlo.compare {order}, %a, %b, {kind} : (<<f32>>, <<f32>>) -> <<i1>>\nstablehlo.return %s : <<i1>>"
for _name, _body in {
    "smaller first": _COMPARE.format(order="LT", kind="TOTALORDER"),
    "larger first": _COMPARE.format(order="GT", kind="FLOAT"),
    "by size": "%c = stablehlo.abs %a : <<f32>>\n%d = stablehlo.abs %b : <<f32>>\n"
    "%s = stablehlo.compare LT, %c, %d, FLOAT : (<<f32>>, <<f32>>) -> <<i1>>\nstablehlo.return %s : <<i1>>",
}.items():
    for _stable in ("true", "false") if _name == "smaller first" else ("true",):
        snippet(f"sort: {_name}{'' if _stable == 'true' else ', in any order'}", "3x5xf32 3x5xi32", "3x5xf32 3x5xi32",
                '%r:2 = "stablehlo.sort"(%0, %1) <{dimension = 1 : i64, is_stable = ' + _stable + "}> ({\n"
                "^bb0(%a: <<f32>>, %b: <<f32>>, %i: <<i32>>, %j: <<i32>>):\n" + _body +
                "\n}) :",
                [[3, -1, 2, -3, 1.5], [1, 0, -0.0, 2, -2], [5, 4, 3, 2, 1]], np.arange(15).reshape(3, 5))  # fmt: skip
snippet("sort of columns", "5x3xi32", "5x3xi32",
        '%r = "stablehlo.sort"(%0) <{dimension = 0 : i64, is_stable = true}> ({\n^bb0(%a: <<i32>>, %b: <<i32>>):\n'
        "%s = stablehlo.compare LT, %a, %b, SIGNED : (<<i32>>, <<i32>>) -> <<i1>>\nstablehlo.return %s : <<i1>>\n"
        "}) :", (np.arange(15) * 7 % 11).reshape(5, 3))  # fmt: skip

# --- control

for _index in (-1, 0, 1, 2, 5):
    snippet(f"case {_index}", "i32 f32", "f32",
            '%r = "stablehlo.case"(%0) ({\nstablehlo.return %1 : <<f32>>\n}, {\n'
            "%s = stablehlo.negate %1 : <<f32>>\nstablehlo.return %s : <<f32>>\n}, {\n"
            "%s = stablehlo.add %1, %1 : <<f32>>\nstablehlo.return %s : <<f32>>\n}) : (<<i32>>) -> <<f32>>",
            _index, 1.5)  # fmt: skip
    snippet(f"case of the constant {_index}", "f32", "f32",
            f"%c = stablehlo.constant dense<{_index}> : <<i32>>\n"
            '%r = "stablehlo.case"(%c) ({\nstablehlo.return %0 : <<f32>>\n}, {\n'
            "%s = stablehlo.negate %0 : <<f32>>\nstablehlo.return %s : <<f32>>\n}, {\n"
            "%s = stablehlo.add %0, %0 : <<f32>>\nstablehlo.return %s : <<f32>>\n}) : (<<i32>>) -> <<f32>>",
            1.5)  # fmt: skip
for _which in (0, 1):
    snippet(f"if {_which}", "i1 f32", "f32",
            '%r = "stablehlo.if"(%0) ({\n%s = stablehlo.negate %1 : <<f32>>\nstablehlo.return %s : <<f32>>\n}, {\n'
            "stablehlo.return %1 : <<f32>>\n}) : (<<i1>>) -> <<f32>>", _which, 1.5)  # fmt: skip
snippet("while", "f32 f32", "f32 f32",
        "%r:2 = stablehlo.while(%x = %0, %n = %1) : <<f32>>, <<f32>>\ncond {\n"
        "%s = stablehlo.compare LT, %x, %1, FLOAT : (<<f32>>, <<f32>>) -> <<i1>>\n"
        "stablehlo.return %s : <<i1>>\n} do {\n"
        "%t = stablehlo.add %x, %x : <<f32>>\n%u = stablehlo.add %n, %x : <<f32>>\n"
        "stablehlo.return %t, %u : <<f32>>, <<f32>>\n}", 0.3, 100)  # fmt: skip
_COUNT = (
    "%z = stablehlo.constant dense<0> : <<i32>>\n%one = stablehlo.constant dense<1> : <<i32>>\n"
    "%first = stablehlo.constant dense<{first}> : <<i32>>\n%last = stablehlo.constant dense<{last}> : <<i32>>\n"
    "%two = stablehlo.constant dense<2> : <<i32>>\n"
    "%init = stablehlo.constant dense<0.0> : <<4x3xf32>>\n"
    "%w:4 = stablehlo.while(%i = %first, %x = %0, %ys = %init, %c = %1) :"
    " <<i32>>, <<4x3xf32>>, <<4x3xf32>>, <<3xf32>>\n"
    "cond {{\n%s = stablehlo.compare LT, %i, %last, SIGNED : (<<i32>>, <<i32>>) -> <<i1>>\n"
    "stablehlo.return %s : <<i1>>\n}}"
    " do {{\n%m = stablehlo.subtract %last, %i : <<i32>>\n%back = stablehlo.subtract %m, %one : <<i32>>\n"
    "%row = stablehlo.dynamic_slice %x, {taken}, %z, sizes = [1, 3] : (<<4x3xf32>>, <<i32>>, <<i32>>) -> <<1x3xf32>>\n"
    "%flat = stablehlo.reshape %row : (<<1x3xf32>>) -> <<3xf32>>\n%sum = stablehlo.add %c, %flat : <<3xf32>>\n"
    "%k = stablehlo.convert %i : (<<i32>>) -> <<f32>>\n"
    "%b = stablehlo.broadcast_in_dim %k, dims = [] : (<<f32>>) -> <<3xf32>>\n"
    "%y = stablehlo.multiply %sum, %b : <<3xf32>>\n"
    "%wide = stablehlo.broadcast_in_dim %y, dims = [1] : (<<3xf32>>) -> <<1x3xf32>>\n"
    "%next = stablehlo.dynamic_update_slice %ys, %wide, {made}, %z :"
    " (<<4x3xf32>>, <<1x3xf32>>, <<i32>>, <<i32>>) -> <<4x3xf32>>\n"
    "%j = stablehlo.add %i, {step} : <<i32>>\n"
    "stablehlo.return %j, %x, %next, %sum : <<i32>>, <<4x3xf32>>, <<4x3xf32>>, <<3xf32>>\n}}\n"
    "%r:3 = stablehlo.optimization_barrier %w#0, %w#2, %w#3 : <<i32>>, <<4x3xf32>>, <<3xf32>>"
)
for _name, _options in {
    "forwards": {},
    "backwards": {"taken": "%back", "made": "%back"},
    "both ways": {"made": "%back"},
    "the other way": {"taken": "%back"},
    "from one": {"first": 1},
    "less than all": {"last": 3},
    "more than all": {"last": 6},
    "not at all": {"first": 5},
    "in steps of two": {"step": "%two"},
    "always the same row": {"taken": "%one", "made": "%one"},
}.items():
    snippet(f"count {_name}", "4x3xf32 3xf32", "i32 4x3xf32 3xf32",
            _COUNT.format(**{"first": 0, "last": 4, "taken": "%i", "made": "%i", "step": "%one", **_options}),
            np.arange(12).reshape(4, 3), [0.5, -1, 2])  # fmt: skip
_FUNCTION = "func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>) {{\n{}\n}}"
_LONG = "\n".join(f"%{c} = stablehlo.subtract %{'abcdefgh'[i]}, %a : tensor<f32>" for i, c in enumerate("cdefghi", 1))
for _name, _body in {
    "short": "%c = stablehlo.subtract %a, %b : tensor<f32>\nfunc.return %b, %c : tensor<f32>, tensor<f32>",
    "long": f"{_LONG}\nfunc.return %i, %d : tensor<f32>, tensor<f32>",
    "empty": "func.return %b, %a : tensor<f32>, tensor<f32>",
}.items():
    snippet(f"call of something {_name}", "f32 f32", "f32 f32",
            "%r:2 = func.call @f(%0, %1) :", 5.5, 1.25,
            around=_FUNCTION.format(_body))  # fmt: skip
    snippet(f"calls of something {_name}", "f32 f32", "f32 f32",
            "%p:2 = func.call @f(%0, %1) : (<<f32>>, <<f32>>) -> (<<f32>>, <<f32>>)\n"
            "%q:2 = func.call @f(%p#1, %p#0) : (<<f32>>, <<f32>>) -> (<<f32>>, <<f32>>)\n"
            "%r:2 = func.call @f(%q#0, %q#0) :", 5.5, 1.25,
            around=_FUNCTION.format(_body))  # fmt: skip
snippet("optimization_barrier", "f32 i32", "f32 i32", "%r:2 = stablehlo.optimization_barrier %0, %1 : <<f32>>, <<i32>>")

# --- transforms, decompositions, random bits

_C = "3x4xcomplex<f32>"
for _kind, _from, _to in (
    ("FFT", _C, _C), ("IFFT", _C, _C), ("RFFT", "3x4xf32", "3x3xcomplex<f32>"),
    ("IRFFT", "3x3xcomplex<f32>", "3x4xf32"),
):  # fmt: skip
    snippet(f"fft {_kind}", _from, _to, f"%r = stablehlo.fft %0, type = {_kind}, length = [4] :")
for _side, _lower, _unit, _transpose in (
    ("true", "true", "false", "NO_TRANSPOSE"), ("false", "false", "true", "TRANSPOSE"),
    ("true", "false", "false", "ADJOINT"),
):  # fmt: skip
    snippet(f"triangular_solve {_side} {_transpose}", "3x3xcomplex<f32> 3x3xcomplex<f32>", "3x3xcomplex<f32>",
            f'%r = "stablehlo.triangular_solve"(%0, %1) <{{left_side = {_side}, lower = {_lower},'
            f" unit_diagonal = {_unit}, transpose_a = #stablehlo<transpose {_transpose}>}}> :",
            np.array([[1, 3 + 1j, 2], [2 - 1j, -2, 1 + 2j], [4, 1j, 1]]),
            np.arange(9).reshape(3, 3) + 1 + 2j)  # fmt: skip
for _algorithm in ("DEFAULT", "THREE_FRY", "PHILOX"):
    snippet(f"rng_bit_generator {_algorithm}", "2xui64", "2xui64 5xui32",
            f"%r:2 = stablehlo.rng_bit_generator %0, algorithm = {_algorithm} :",
            [7, 11])  # fmt: skip

# --- CHLO, as artifacts have it

_X = [0.05, 0.3, 0.6, 0.9, -0.45, 0.999]
for _name in (
    "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma sinh square tan"
).split():
    _values = [1.0 + abs(x) for x in _X] if _name == "acosh" else _X
    snippet(f"chlo.{_name}", "6xf32", "6xf32", f"%r = chlo.{_name} %0 : <<6xf32>> -> <<6xf32>>", _values)
for _name in "next_after polygamma zeta".split():
    snippet(f"chlo.{_name}", "3xf32 3xf32", "3xf32", f"%r = chlo.{_name} %0, %1 : <<3xf32>>, <<3xf32>> -> <<3xf32>>",
            [2.0, 3.0, 4.0], [1.5, 2.5, 0.5])  # fmt: skip
snippet("chlo.conj", "3xcomplex<f32>", "3xcomplex<f32>",
        "%r = chlo.conj %0 : tensor<3xcomplex<f32>> -> tensor<3xcomplex<f32>>")  # fmt: skip
snippet("chlo.is_inf", "3xf32", "3xi1", "%r = chlo.is_inf %0 : <<3xf32>> -> <<3xi1>>", [np.inf, np.nan, 1])
snippet("chlo.top_k", "2x5xf32", "2x2xf32 2x2xi32",
        "%r:2 = chlo.top_k(%0, k = 2) : <<2x5xf32>> -> (<<2x2xf32>>, <<2x2xi32>>)")  # fmt: skip
snippet("composite of one's own", "f32 f32", "f32",
        '%r = stablehlo.composite "my.op" %0, %1 {composite_attributes = {x = "anything"}, decomposition = @f,'
        " version = 3 : i32} :",
        around="func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {\n"
        "%c = stablehlo.subtract %b, %a : tensor<f32>\nfunc.return %c : tensor<f32>\n}")  # fmt: skip
