"""The served models of bench/models.py for other runtimes: ONNX, written by hand, and code that PyTorch compiled."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import disk
from bench.models import HEADS, SERVED, WIDTH

EPSILON = 1e-6  # of bench.models.normalized


def weights_of(name: str) -> tuple[Any, np.ndarray]:
    """The weights and the argument, as arrays of NumPy."""
    import jax

    return jax.tree.map(np.asarray, SERVED[name][1]())


class _Graph:
    """An ONNX graph, node by node."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.to_tensor = helper, numpy_helper.from_array
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.to_tensor(np.ascontiguousarray(value), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def write(self, path: Path, x: np.ndarray, result: str) -> None:
        from onnx import TensorProto, save

        given = self.helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
        found = self.helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = self.helper.make_graph(self.nodes, "served", [given], [found], self.constants)
        opsets = [self.helper.make_opsetid("", 20)]
        save(self.helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))


def _onnx_sum(graph: _Graph, _: Any) -> str:
    return graph.add("Add", "x", graph.constant(np.float32(1)))


def _onnx_convnet(graph: _Graph, weights: Any) -> str:
    *kernels, last = weights
    images = graph.add("Transpose", "x", perm=[0, 3, 1, 2])
    for i, kernel in enumerate(kernels):
        kernel = graph.constant(kernel.transpose(3, 2, 0, 1))
        images = graph.add("Conv", images, kernel, strides=[1 + i % 2] * 2, auto_pad="SAME_UPPER")
        images = graph.add("Relu", images)
    means = graph.add("ReduceMean", images, graph.constant(np.array([2, 3])), keepdims=0)
    return graph.add("LogSoftmax", graph.add("MatMul", means, graph.constant(last)), axis=-1)


def _onnx_transformer(graph: _Graph, layers: Any) -> str:
    ones = graph.constant(np.ones(WIDTH, np.float32))
    scale = graph.constant(np.float32(np.sqrt(WIDTH // HEADS)))
    parts = graph.constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
    whole = graph.constant(np.array([0, 0, WIDTH]))

    def normalized(x: str) -> str:
        return graph.add("LayerNormalization", x, ones, axis=-1, epsilon=EPSILON)

    def product(x: str, weight: np.ndarray) -> str:
        return graph.add("MatMul", x, graph.constant(weight))

    x = "x"
    for layer in layers:
        inside = normalized(x)
        q, k, v = (graph.add("Reshape", product(inside, layer[name]), parts) for name in "qkv")
        q, v = (graph.add("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        scores = graph.add("Div", graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 2, 3, 1])), scale)
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), v)
        mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
        x = graph.add("Add", x, product(mixed, layer["out"]))
        up = graph.add("Gelu", product(normalized(x), layer["up"]), approximate="tanh")
        x = graph.add("Add", x, product(up, layer["down"]))
    return normalized(x)


def _torch_sum(_: Any) -> Callable[..., Any]:
    return lambda x: x + 1


def _torch_convnet(weights: Any) -> Callable[..., Any]:
    from torch.nn import functional

    *kernels, last = weights
    kernels = [kernel.permute(3, 2, 0, 1).contiguous() for kernel in kernels]

    def forward(x: Any) -> Any:
        images = x.permute(0, 3, 1, 2)
        for i, kernel in enumerate(kernels):
            images = functional.pad(images, (0, 1, 0, 1) if i % 2 else (1, 1, 1, 1))
            images = functional.relu(functional.conv2d(images, kernel, stride=1 + i % 2))
        return functional.log_softmax(images.mean((2, 3)) @ last, -1)

    return forward


def _torch_transformer(layers: Any) -> Callable[..., Any]:
    from torch.nn import functional

    def normalized(x: Any) -> Any:
        return functional.layer_norm(x, (WIDTH,), eps=EPSILON)

    def forward(x: Any) -> Any:
        for layer in layers:
            inside = normalized(x)
            heads = ((inside @ layer[name]).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qkv")
            mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
            x = x + mixed @ layer["out"]
            x = x + functional.gelu(normalized(x) @ layer["up"], approximate="tanh") @ layer["down"]
        return normalized(x)

    return forward


_ONNX = {"16 numbers": _onnx_sum, "convnet": _onnx_convnet, "transformer": _onnx_transformer}
_TORCH = {"16 numbers": _torch_sum, "convnet": _torch_convnet, "transformer": _torch_transformer}


def write_onnx(name: str, path: Path) -> None:
    weights, x = weights_of(name)
    graph = _Graph()
    graph.write(path, x, _ONNX[name](graph, weights))


@functools.cache
def _compiled(name: str) -> bytes:
    """A package of AOTInductor, which takes a C++ compiler and tens of seconds."""
    import torch
    from torch.utils import _pytree

    weights, x = weights_of(name)
    forward = _TORCH[name](_pytree.tree_map(torch.tensor, weights))

    class Served(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return forward(x)

    path = disk.new_path().with_suffix(".pt2")
    exported = torch.export.export(Served(), (torch.tensor(x),))
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    return path.read_bytes()


def write_aoti(name: str, path: Path) -> None:
    path.write_bytes(_compiled(name))


# By name, what writes the file beside an artifact: those whose packages are installed.
RIVALS = {
    name: (suffix, write)
    for name, suffix, packages, write in (
        ("ONNX Runtime", ".onnx", ("onnx", "onnxruntime"), write_onnx),
        ("AOTInductor", ".pt2", ("torch",), write_aoti),
    )
    if all(importlib.util.find_spec(package) for package in packages)
}
