"""Operations without the attributes that may be left out."""

import numpy as np

from .snippet import snippet

_ADD = "^bb0(%a: <<f32>>, %b: <<f32>>):\n%s = stablehlo.add %a, %b : <<f32>>\nstablehlo.return %s : <<f32>>\n"
_COMPARE = (
    "^bb0(%a: <<f32>>, %b: <<f32>>):\n%s = stablehlo.compare {}, %a, %b : (<<f32>>, <<f32>>) -> <<i1>>\n"
    "stablehlo.return %s : <<i1>>\n"
)

snippet("reduce_window of windows only", "4x7xf32", "3x5xf32",
        "%c = stablehlo.constant dense<0.0> : <<f32>>\n"
        '%r = "stablehlo.reduce_window"(%0, %c) <{window_dimensions = array<i64: 2, 3>}> ({\n' + _ADD +
        "}) : (<<4x7xf32>>, <<f32>>) -> <<3x5xf32>>")  # fmt: skip
snippet("reduce_window with spread elements", "4x3xf32", "7x4xf32",
        "%c = stablehlo.constant dense<0.0> : <<f32>>\n"
        '%r = "stablehlo.reduce_window"(%0, %c) <{window_dimensions = array<i64: 1, 2>,'
        " base_dilations = array<i64: 2, 2>}> ({\n" + _ADD + "}) : (<<4x3xf32>>, <<f32>>) -> <<7x4xf32>>")  # fmt: skip
snippet("select_and_scatter of windows only", "3x4xf32 2x3xf32", "3x4xf32",
        "%c = stablehlo.constant dense<0.0> : <<f32>>\n"
        '%r = "stablehlo.select_and_scatter"(%0, %1, %c) <{window_dimensions = array<i64: 2, 2>}> ({\n'
        + _COMPARE.format("GE") + "}, {\n" + _ADD
        + "}) : (<<3x4xf32>>, <<2x3xf32>>, <<f32>>) -> <<3x4xf32>>")  # fmt: skip
snippet("sort of the last dimension", "3x5xf32", "3x5xf32",
        '%r = "stablehlo.sort"(%0) ({\n' + _COMPARE.format("LT") + "}) :")  # fmt: skip
snippet("compare without a type", "4xf32 4xf32", "4xi1",
        "%r = stablehlo.compare LE, %0, %1 :",
        [0.0, -0.0, np.nan, 2], [-0.0, 0.0, np.nan, 1])  # fmt: skip
snippet("composite without a version", "f32 f32", "f32",
        '%r = stablehlo.composite "my.op" %0, %1 {decomposition = @f} :',
        around="func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {\n"
        "%c = stablehlo.subtract %b, %a : tensor<f32>\nfunc.return %c : tensor<f32>\n}")  # fmt: skip
