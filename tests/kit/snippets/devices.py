"""Snippets for eight devices: code that each runs by itself, and operations in which they exchange data."""

from __future__ import annotations

from typing import Any

from .snippet import snippet

MESH = (
    'sdy.mesh @mesh = <["x"=2, "y"=4]>'
    ' {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 4 : i64}]}}'
)
_BOTH = '<@mesh, [{"x"}, {"y"}]>'
_X, _Y, _ALL = "[[0, 4], [1, 5], [2, 6], [3, 7]]", "[[0, 1, 2, 3], [4, 5, 6, 7]]", "[[0, 4, 1, 5, 2, 6, 3, 7]]"


def _manual(
    name: str,
    body: str,
    gives: str,
    *,
    takes: str = "8x8xf32",
    part: str = "4x2xf32",
    result: str = "4x2xf32",
    before: str = _BOTH,
    after: str = _BOTH,
    axes: str = '"x", "y"',
    around: str = "",
    values: Any = (),
) -> None:
    """A manual computation with the one argument %a, which returns %s."""
    snippet(
        name, takes, gives,
        f"%r = sdy.manual_computation(%0) in_shardings=[{before}] out_shardings=[{after}] manual_axes={{{axes}}}"
        f" (%a: <<{part}>>) {{\n{body}\nsdy.return %s : <<{result}>>\n}} :",
        *values, around=f"{MESH}\n{around}", devices=8,
    )  # fmt: skip


def _groups(groups: str, *, with_flag: bool = True) -> str:
    """The attributes of a collective in a module that runs as one replica."""
    if groups.startswith("["):
        rows, columns = groups.count("[") - 1, groups.partition("]")[0].count(",") + 1
        groups = f"dense<{groups}> : tensor<{rows}x{columns}xi64>"
    flag = ", use_global_device_ids" if with_flag else ""
    return f"channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = {groups}{flag}"


def _region(operation: str, type_: str) -> str:
    return (
        f"({{\n^bb0(%b: <<{type_}>>, %c: <<{type_}>>):\n%d = stablehlo.{operation} %b, %c : <<{type_}>>\n"
        f"stablehlo.return %d : <<{type_}>>\n}})"
    )


def _all_reduce(operation: str, groups: str, type_: str = "f32", operand: str = "%a") -> str:
    part = f"<<4x2x{type_}>>"
    return (
        f'%s = "stablehlo.all_reduce"({operand}) <{{{_groups(groups)}}}> {_region(operation, type_)}'
        f" : ({part}) -> {part}"
    )


for _operation in ("add", "maximum", "minimum"):
    _manual(f"all_reduce: {_operation}", _all_reduce(_operation, _Y), "8x8xf32")
_manual("all_reduce of integers", _all_reduce("add", _X, "i32"), "8x8xi32",
        takes="8x8xi32", part="4x2xi32", result="4x2xi32")  # fmt: skip
_manual("all_reduce over both axes", _all_reduce("add", _ALL), "4x2xf32", after="<@mesh, [{}, {}]>")
_manual("all_reduce over part of an axis", _all_reduce("add", "[[1, 3], [0, 2], [5, 7], [4, 6]]"), "8x8xf32")
_manual("all_reduce across the axes", _all_reduce("add", "[[0, 5], [1, 4], [2, 7], [3, 6]]"), "8x8xf32")
_manual("all_reduce of each device", _all_reduce("add", "[[0], [1], [2], [3], [4], [5], [6], [7]]"), "8x8xf32")
_manual("all_reduce of a constant",
        "%k = stablehlo.constant dense<0.1> : <<4x2xf32>>\n"
        + _all_reduce("add", _ALL, operand="%k").replace("%s", "%t")
        + "\n%s = stablehlo.add %a, %t : <<4x2xf32>>", "8x8xf32", values=([[0.0] * 8] * 8,))  # fmt: skip
_manual("all_reduce over named axes",
        _all_reduce("add", "#stablehlo.replica_group_mesh_axes<mesh = @mesh, "
                    'axes = [#stablehlo.axis_ref<name = "y">]>'), "8x8xf32")  # fmt: skip
for _dim, _groups_, _whole, _part in ((0, _Y, "32x8", "16x2"), (1, _X, "8x16", "4x4"), (1, _ALL, "8x64", "4x16")):
    _manual(f"all_gather of dimension {_dim} to {_part}",
            f'%s = "stablehlo.all_gather"(%a) <{{all_gather_dim = {_dim} : i64, {_groups(_groups_)}}}>'
            f" : (<<4x2xf32>>) -> <<{_part}xf32>>", f"{_whole}xf32", result=f"{_part}xf32")  # fmt: skip
for _dim, _groups_, _whole, _part in ((0, _Y, "2x8", "1x2"), (1, _X, "8x4", "4x1")):
    _manual(f"reduce_scatter of dimension {_dim}",
            f'%s = "stablehlo.reduce_scatter"(%a) <{{scatter_dimension = {_dim} : i64, {_groups(_groups_)}}}>'
            f" {_region('add', 'f32')} : (<<4x2xf32>>) -> <<{_part}xf32>>", f"{_whole}xf32",
            result=f"{_part}xf32")  # fmt: skip
for _split, _concat, _groups_, _whole, _part in ((0, 1, _Y, "2x32", "1x8"), (1, 0, _X, "16x4", "8x1")):
    _manual(f"all_to_all from dimension {_split}",
            f'%s = "stablehlo.all_to_all"(%a) <{{split_dimension = {_split} : i64, concat_dimension = {_concat} : i64,'
            f" split_count = {4 if _groups_ == _Y else 2} : i64, {_groups(_groups_, with_flag=False)}}}>"
            f" : (<<4x2xf32>>) -> <<{_part}xf32>>", f"{_whole}xf32", result=f"{_part}xf32")  # fmt: skip
for _name, _pairs in {
    "along an axis": "[[0, 1], [1, 2], [3, 0], [4, 5], [5, 6], [7, 4]]",
    "along both axes": "[[0, 1], [1, 4], [4, 7], [7, 2], [5, 5]]",
}.items():
    _manual(f"collective_permute {_name}",
            '%s = "stablehlo.collective_permute"(%a)'
            " <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>,"
            f" source_target_pairs = dense<{_pairs}> : tensor<{_pairs.count('[') - 1}x2xi64>}}>"
            " : (<<4x2xf32>>) -> <<4x2xf32>>", "8x8xf32")  # fmt: skip

# --- numbers of devices

_ADDED = (
    "%f = stablehlo.convert %n : (<<{0}>>) -> <<f32>>\n"
    "%g = stablehlo.broadcast_in_dim %f, dims = [] : (<<f32>>) -> <<4x2xf32>>\n"
    "%s = stablehlo.add %a, %g : <<4x2xf32>>"
)
_PLACE = (
    "%m = stablehlo.constant dense<{0}> : <<ui32>>\n%o = stablehlo.constant dense<{1}> : <<ui32>>\n"
    "%p = stablehlo.partition_id : <<ui32>>\n%d = stablehlo.divide %p, %m : <<ui32>>\n"
    "%e = stablehlo.remainder %d, %o : <<ui32>>\n%n = stablehlo.convert %e : (<<ui32>>) -> <<i32>>\n"
)
_manual("partition_id", "%n = stablehlo.partition_id : <<ui32>>\n" + _ADDED.format("ui32"), "8x8xf32")
_manual("replica_id", "%n = stablehlo.replica_id : <<ui32>>\n" + _ADDED.format("ui32"), "8x8xf32")
_manual("place along x", _PLACE.format(4, 2) + _ADDED.format("i32"), "8x8xf32")
_manual("place along y", _PLACE.format(1, 4) + _ADDED.format("i32"), "8x8xf32")
_manual("place along no axis", _PLACE.format(2, 4) + _ADDED.format("i32"), "8x8xf32")

# --- manual computations

_OVER_X: dict[str, Any] = {"part": "4x8xf32", "result": "4x8xf32", "axes": '"x"'}
_REDUCED = f'%s = "stablehlo.all_reduce"(%a) <{{{_groups(_X)}}}> {_region("add", "f32")} : (<<4x8xf32>>) -> <<4x8xf32>>'
_manual("manual_computation over one axis", _REDUCED, "8x8xf32",
        before='<@mesh, [{"x", ?}, {?}]>', after='<@mesh, [{"x", ?}, {?}]>', **_OVER_X)  # fmt: skip
_manual("manual_computation that leaves the other axis to the compiler, who is told how to use it",
        _REDUCED.replace("%a", "%h").replace("%s =", '%h = sdy.sharding_constraint %a <@mesh, [{?}, {"y"}]> :'
        " <<4x8xf32>>\n%s =", 1), "8x8xf32",
        before='<@mesh, [{"x"}, {"y"}]>', after='<@mesh, [{"x"}, {}]>', **_OVER_X)  # fmt: skip
_manual("manual_computation in another",
        f'%s = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{?}}, {{"y", ?}}]>]'
        f' out_shardings=[<@mesh, [{{?}}, {{"y", ?}}]>] manual_axes={{"y"}} (%i: <<4x2xf32>>) {{\n'
        f"{_all_reduce('add', _ALL, operand='%i').replace('%s', '%t')}\nsdy.return %t : <<4x2xf32>>\n}}"
        " : (<<4x8xf32>>) -> <<4x8xf32>>", "8x8xf32",
        before='<@mesh, [{"x", ?}, {?}]>', after='<@mesh, [{"x", ?}, {?}]>', **_OVER_X)  # fmt: skip
_manual("place along an axis in a manual computation over it",
        '%n = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"y"} () {\n'
        + _PLACE.format(4, 2) + "sdy.return %n : <<i32>>\n} : () -> <<i32>>\n"
        + _ADDED.format("i32").replace("4x2", "4x8"), "8x8xf32",
        before='<@mesh, [{"x", ?}, {?}]>', after='<@mesh, [{"x", ?}, {?}]>', **_OVER_X)  # fmt: skip
_manual("functions in a manual computation",
        "%b = func.call @f(%a) : (<<4x2xf32>>) -> <<4x2xf32>>\n%s = func.call @f(%b) : (<<4x2xf32>>) -> <<4x2xf32>>",
        "8x8xf32", around="func.func private @f(%arg0: tensor<4x2xf32>) -> tensor<4x2xf32> {\n"
        + _all_reduce("add", _Y, operand="%arg0").replace("<<", "tensor<").replace("4x2xf32>>", "4x2xf32>")
        .replace("f32>>", "f32>") + "\nfunc.return %s : tensor<4x2xf32>\n}")  # fmt: skip
_manual("manual_computation over two dimensions of one", _all_reduce("add", _Y), "4x16xf32", takes="4x16xf32",
        before='<@mesh, [{}, {"x", "y"}]>', after='<@mesh, [{}, {"x", "y"}]>')  # fmt: skip
