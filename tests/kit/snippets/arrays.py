"""Snippets of operations that move, multiply, pick and reduce elements."""

from __future__ import annotations

import numpy as np

from .snippet import snippet

# --- shapes

snippet("broadcast_in_dim", "3x1xf32", "2x4x3xf32", "%r = stablehlo.broadcast_in_dim %0, dims = [2, 0] :")
snippet("reshape", "2x6xf32", "3x4xf32", "%r = stablehlo.reshape %0 :")
snippet("transpose", "2x3x4xf32", "4x2x3xf32", "%r = stablehlo.transpose %0, dims = [2, 0, 1] :")
snippet("slice", "9x5xf32", "2x2xf32", "%r = stablehlo.slice %0 [1:7:3, 2:4] :")
for _at in (-4, 1, 7):
    snippet(f"dynamic_slice at {_at}", "6x5xf32 i32 i32", "2x3xf32",
            "%r = stablehlo.dynamic_slice %0, %1, %2, sizes = [2, 3] :",
            np.arange(30).reshape(6, 5), _at, 1)  # fmt: skip
    snippet(f"dynamic_update_slice at {_at}", "6x5xf32 2x3xf32 i32 i32", "6x5xf32",
            "%r = stablehlo.dynamic_update_slice %0, %1, %2, %3 :",
            np.arange(30).reshape(6, 5), -np.ones((2, 3)), _at, 1)  # fmt: skip
snippet("concatenate", "2x3xf32 2x1xf32", "2x4xf32", "%r = stablehlo.concatenate %0, %1, dim = 1 :")
snippet("pad", "3x4xf32 f32", "6x5xf32", "%r = stablehlo.pad %0, %1, low = [1, -1], high = [0, 2], interior = [1, 0] :")
snippet("reverse", "2x3x4xf32", "2x3x4xf32", "%r = stablehlo.reverse %0, dims = [0, 2] : <<2x3x4xf32>>")
snippet("iota", "f32", "2x3xi32", "%r = stablehlo.iota dim = 1 : <<2x3xi32>>")
for _name, _type_text, _literal in (
    ("floats", "2x2xf32", "[[1.0, -0.0], [0x7FC00001, 3.0e-42]]"), ("a splat", "2x3xf32", "-0.0"),
    ("one", "i32", "-7"),
    ("nothing", "0xf32", "1.0"), ("bools", "9xi1", str([i % 3 == 1 for i in range(9)]).lower()),
    ("bfloats", "4xbf16", "[1.0, -2.5, 0x7FC0, 0xFF80]"), ("a splat of bfloats", "3xbf16", "0.1"),
    ("complex numbers", "2xcomplex<f32>", "[(1.0, -2.0), (0x7FC00000, 0.1)]"),
    ("a complex number", "complex<f64>", "(0.1, -0.0)"),
    ("a splat of complex numbers", "3xcomplex<f32>", "(0.1, 2.5)"), ("small integers", "5xi4", "[1, -8, 7, 0, -1]"),
    ("small floats", "3xf8E4M3FN", "[1.0, -448.0, 0x7F]"),
    ("wide", "2xi64", "[9223372036854775807, -9223372036854775808]"),
    ("many bfloats", "130xbf16", str([i / 8 for i in range(130)])),
    ("many small integers", "130xi4", str([i % 7 - 3 for i in range(130)])),
    ("many complex numbers", "130xcomplex<f32>", "[" + ", ".join(f"({i}.0, -{i}.5)" for i in range(130)) + "]"),
):  # fmt: skip
    snippet(
        f"constant: {_name}", "f32", _type_text, f"%r = stablehlo.constant dense<{_literal}> : tensor<{_type_text}>"
    )

# --- products

snippet("dot_general", "2x3x4xf32 4x5x2xf32", "2x3x5xf32",
        "%r = stablehlo.dot_general %0, %1, batching_dims = [0] x [2], contracting_dims = [2] x [0] :")  # fmt: skip
snippet("dot_general with precisions", "3x4xbf16 4x5xbf16", "3x5xf32",
        "%r = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0], precision = [HIGHEST, HIGH] :")  # fmt: skip
snippet("outer product, transposed", "3xf32 2x4xf32", "2x4x3xf32",
        "%p = stablehlo.dot_general %0, %1, contracting_dims = [] x [], precision = [HIGHEST, HIGH] :"
        " (<<3xf32>>, <<2x4xf32>>) -> <<3x2x4xf32>>\n"
        "%r = stablehlo.transpose %p, dims = [1, 2, 0] : (<<3x2x4xf32>>) -> <<2x4x3xf32>>")  # fmt: skip
snippet("outer product, transposed in another way", "3xf32 2x4xf32", "4x2x3xf32",
        "%p = stablehlo.dot_general %0, %1, contracting_dims = [] x [] : (<<3xf32>>, <<2x4xf32>>) -> <<3x2x4xf32>>\n"
        "%r = stablehlo.transpose %p, dims = [2, 1, 0] : (<<3x2x4xf32>>) -> <<4x2x3xf32>>")  # fmt: skip
snippet("convolution", "2x3x7x8xf32 4x3x2x3xf32", "2x4x5x3xf32",
        "%r = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window ="
        " {stride = [2, 2], pad = [[1, 2], [0, -1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1]}"
        " {batch_group_count = 1 : i64, feature_group_count = 1 : i64} :")  # fmt: skip
snippet("convolution of groups", "7x2x4xf32 3x2x6xf32", "2x15x6xf32",
        "%r = stablehlo.convolution(%0, %1) dim_numbers = [0, b, f]x[0, i, o]->[b, 0, f], window ="
        " {pad = [[2, 4]], lhs_dilate = [2], rhs_dilate = [2], reverse = [true]}"
        " {batch_group_count = 1 : i64, feature_group_count = 2 : i64,"
        " precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} :",
        np.arange(56).reshape(7, 2, 4) % 9, np.arange(36).reshape(3, 2, 6) % 7)  # fmt: skip
snippet("convolution of batch groups", "5x4x3xf32 2x3x6xf32", "4x2x6xf32",
        "%r = stablehlo.convolution(%0, %1) dim_numbers = [0, b, f]x[0, i, o]->[0, b, f], window = {}"
        " {batch_group_count = 2 : i64, feature_group_count = 1 : i64} :")  # fmt: skip

# --- indexing

_GATHER = (
    '%r = "stablehlo.gather"(%0, %1) <{{dimension_numbers = #stablehlo.gather<offset_dims = [{offset}], {collapsed}'
    "start_index_map = [{map}], index_vector_dim = {vector}>, indices_are_sorted = false,"
    " slice_sizes = array<i64: {sizes}>}}> :"
)
snippet("gather", "5x6xf32 2x3xi32", "3x4xf32",
        _GATHER.format(offset=1, collapsed="collapsed_slice_dims = [0], ", map="0, 1", vector=0, sizes="1, 4"),
        np.arange(30).reshape(5, 6), [[0, -2, 9], [1, 2, 5]])  # fmt: skip
snippet("gather of single indices", "5x6xf32 3xi32", "3x1x6xf32",
        _GATHER.format(offset="1, 2", collapsed="", map=0, vector=1, sizes="1, 6"),
        np.arange(30).reshape(5, 6), [4, 0, 7])  # fmt: skip
snippet("gather in batches", "2x5x3xf32 2x4x1xi32", "2x4x3xf32",
        _GATHER.format(offset=2, collapsed="collapsed_slice_dims = [1], operand_batching_dims = [0],"
                       " start_indices_batching_dims = [0], ", map=1, vector=2, sizes="1, 1, 3"),
        np.arange(30).reshape(2, 5, 3), np.array([0, 4, 2, 9, 1, 1, -1, 3]).reshape(2, 4, 1))  # fmt: skip
for _name, _region in {
    "add": "%s = stablehlo.add %a, %b : <<f32>>",
    "multiply": "%s = stablehlo.multiply %a, %b : <<f32>>",
    "minimum": "%s = stablehlo.minimum %a, %b : <<f32>>",
    "maximum": "%s = stablehlo.maximum %a, %b : <<f32>>",
    "subtract": "%s = stablehlo.subtract %a, %b : <<f32>>",
    "new ones": "%s = stablehlo.reshape %b : (<<f32>>) -> <<f32>>",
    "differences": "%t = stablehlo.subtract %b, %a : <<f32>>\n%s = stablehlo.abs %t : <<f32>>",
}.items():
    snippet(f"scatter: {_name}", "4x5xf32 2x3xi32 3x2xf32", "4x5xf32",
            '%r = "stablehlo.scatter"(%0, %1, %2) <{scatter_dimension_numbers ='
            " #stablehlo.scatter<update_window_dims = [1],"
            " inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 0>,"
            " indices_are_sorted = false, unique_indices = false}> ({\n^bb0(%a: <<f32>>, %b: <<f32>>):\n" + _region +
            "\nstablehlo.return %s : <<f32>>\n}) :",
            np.arange(20).reshape(4, 5), [[0, 2, 9], [1, 3, 0]], [[-1, 50], [3, 4], [5, 6]])  # fmt: skip

# --- reductions

for _name, _start in {"add": "0.0", "multiply": "1.0", "maximum": "0xFF800000", "minimum": "0x7F800000"}.items():
    for _from in (_start, "2.0"):
        snippet(f"reduce by {_name} from {_from}", "3x4x2xf32", "4xf32",
                f"%c = stablehlo.constant dense<{_from}> : <<f32>>\n"
                f"%r = stablehlo.reduce(%0 init: %c) applies stablehlo.{_name} across dimensions = [0, 2] :"
                " (<<3x4x2xf32>>, <<f32>>) -> <<4xf32>>")  # fmt: skip
        snippet(f"reduce_window by {_name} from {_from}", "4x7xf32", "3x4xf32",
                f"%c = stablehlo.constant dense<{_from}> : <<f32>>\n"
                '%r = "stablehlo.reduce_window"(%0, %c) <{padding = dense<[[0, 1], [1, 2]]> : tensor<2x2xi64>,'
                " window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 1, 2>,"
                " base_dilations = array<i64: 1, 1>, window_dilations = array<i64: 2, 2>}> ({\n"
                f"^bb0(%a: <<f32>>, %b: <<f32>>):\n%s = stablehlo.{_name} %a, %b : <<f32>>\n"
                "stablehlo.return %s : <<f32>>\n}) : (<<4x7xf32>>, <<f32>>) -> <<3x4xf32>>")  # fmt: skip
snippet("reduce from -0.0", "2x0xf32", "2xf32",
        "%c = stablehlo.constant dense<-0.0> : <<f32>>\n"
        "%r = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [1] :"
        " (<<2x0xf32>>, <<f32>>) -> <<2xf32>>")  # fmt: skip
snippet("reduce from an argument", "3x4xf32 f32", "3xf32",
        "%r = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] :")  # fmt: skip
for _name, _start in {"and": "true", "or": "false", "xor": "false"}.items():
    snippet(f"reduce by {_name}", "3x4xi1", "3xi1",
            f"%c = stablehlo.constant dense<{_start}> : <<i1>>\n"
            f"%r = stablehlo.reduce(%0 init: %c) applies stablehlo.{_name} across dimensions = [1] :"
            " (<<3x4xi1>>, <<i1>>) -> <<3xi1>>", [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 1]])  # fmt: skip
snippet("reduce of pairs", "3x4xf32 3x4xi32 f32 i32", "3xf32 3xi32",
        "%r:2 = stablehlo.reduce(%0 init: %2), (%1 init: %3) across dimensions = [1] :"
        " (<<3x4xf32>>, <<3x4xi32>>, <<f32>>, <<i32>>) -> (<<3xf32>>, <<3xi32>>)\n"
        "reducer(%a: <<f32>>, %b: <<f32>>) (%i: <<i32>>, %j: <<i32>>) {\n"
        "%w = stablehlo.compare GT, %a, %b, FLOAT : (<<f32>>, <<f32>>) -> <<i1>>\n"
        "%x = stablehlo.select %w, %a, %b : <<i1>>, <<f32>>\n%y = stablehlo.select %w, %i, %j : <<i1>>, <<i32>>\n"
        "stablehlo.return %x, %y : <<f32>>, <<i32>>\n}")  # fmt: skip
snippet("select_and_scatter", "5x6xf32 3x3xf32", "5x6xf32",
        "%c = stablehlo.constant dense<0.5> : <<f32>>\n"
        '%r = "stablehlo.select_and_scatter"(%0, %1, %c) <{padding = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>,'
        " window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 2>}> ({\n"
        "^bb0(%a: <<f32>>, %b: <<f32>>):\n%s = stablehlo.compare GE, %a, %b, FLOAT : (<<f32>>, <<f32>>) -> <<i1>>\n"
        "stablehlo.return %s : <<i1>>\n}, {\n"
        "^bb0(%a: <<f32>>, %b: <<f32>>):\n%s = stablehlo.subtract %a, %b : <<f32>>\n"
        "stablehlo.return %s : <<f32>>\n}) : (<<5x6xf32>>, <<3x3xf32>>, <<f32>>) -> <<5x6xf32>>")  # fmt: skip
