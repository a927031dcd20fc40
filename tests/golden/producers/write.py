"""Writes modules of other producers, with what each producer computes itself.

usage: write.py PRODUCER FOLDER

PRODUCER is torch_xla, torchax, tensorflow or iree, which this process has installed. `FOLDER/CASE.mlir` (text) or
`FOLDER/CASE.mlirbc` (bytecode) is the module as the producer writes it. `FOLDER/CASE.npz` has the arguments in the
order of the module (`in_0`, ...), its results (`out_0`, ...), and the producer's own gradients (`grad_0`, ...) of the
sum of all results, each times its number plus one, with respect to each argument; none if the producer does not
differentiate. Needs no part of jaxexp.
"""

import os
import subprocess
import sys

import numpy as np

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PJRT_DEVICE"] = "CPU"
os.environ["EXPERIMENTAL_XLA_UNBOUNDED_DYNAMISM"] = "1"  # for dynamic shapes in PyTorch/XLA

RNG = np.random.default_rng(7)


def values(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def write(folder, case, module, arguments, results, gradients=()):
    text = isinstance(module, str)
    with open(f"{folder}/{case}.{'mlir' if text else 'mlirbc'}", "wb") as file:
        file.write(module.encode() if text else bytes(module))
    named = {"in": arguments, "out": results, "grad": gradients}
    np.savez(
        f"{folder}/{case}.npz",
        **{f"{name}_{i}": np.asarray(a) for name, many in named.items() for i, a in enumerate(many)},
    )


# --- PyTorch


def torch_modules():
    import torch

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

        def forward(self, x):
            return torch.softmax(self.second(torch.relu(self.first(x))), -1)

    class Attention(torch.nn.Module):
        """Attention, a layer norm, and the exact GELU; two results."""

        def __init__(self):
            super().__init__()
            self.attention, self.norm = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.LayerNorm(8)

        def forward(self, x):
            y, weights = self.attention(x, x, x)
            return torch.nn.functional.gelu(self.norm(x + y)), weights

    class Convnet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.dense = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Linear(12, 2)

        def forward(self, x):
            return self.dense(torch.nn.functional.max_pool2d(torch.tanh(self.conv(x)), 2).flatten(1))

    torch.manual_seed(3)
    shapes = {Mlp: (2, 4), Attention: (2, 5, 8), Convnet: (2, 2, 4, 4)}
    for made, shape in shapes.items():
        yield made.__name__.lower(), made().eval(), torch.from_numpy(values(*shape))


def torch_results(module, x):
    """The results and the gradients by name; that of the argument is None."""
    x = x.clone().requires_grad_()
    results = module(x)
    results = results if isinstance(results, tuple) else (results,)
    sum((i + 1) * result.sum() for i, result in enumerate(results)).backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    return [result.detach().numpy() for result in results], {**gradients, None: x.grad.numpy()}


def torch_xla(folder):
    import torch
    from torch_xla.stablehlo import VariableType, exported_program_to_stablehlo

    for case, module, x in torch_modules():
        for is_dynamic in (False, True)[: 1 + (case == "mlp")]:
            dynamic = ({0: torch.export.Dim("batch")},) if is_dynamic else None
            exported = torch.export.export(module, (x,), dynamic_shapes=dynamic)
            graph = exported_program_to_stablehlo(exported)
            places = graph._bundle.stablehlo_funcs[0].meta.input_locations
            names = [None if place.type_ == VariableType.INPUT_ARG else place.name for place in places]
            state = {**exported.state_dict, None: x}
            results, gradients = torch_results(module, x)
            arguments = [state[name].detach().numpy() for name in names]
            code = graph.get_stablehlo_bytecode() if case != "convnet" else graph.get_stablehlo_text()
            case_name = f"{case}_of_any_batch" if is_dynamic else case
            write(folder, case_name, code, arguments, results, [gradients[name] for name in names])


def torchax(folder):
    import torch
    from torchax.export import exported_program_to_stablehlo

    for case, module, x in torch_modules():
        exported = torch.export.export(module, (x,))
        _, of_jax = exported_program_to_stablehlo(exported)
        names = [*exported.graph_signature.parameters, *exported.graph_signature.buffers]
        state = exported.state_dict
        results, gradients = torch_results(module, x)
        arguments = [*(state[name].detach().numpy() for name in names), x.numpy()]
        code = of_jax.mlir_module_serialized
        write(folder, case, code, arguments, results, [gradients[name] for name in (*names, None)])


# --- TensorFlow


def tensorflow(folder):
    import tensorflow as tf

    def mlp(w, b, x):
        return tf.nn.softmax(tf.tanh(tf.matmul(x, w) + b))

    def convnet(kernel, x):
        y = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return tf.nn.max_pool2d(y, 2, 2, "VALID"), tf.reduce_mean(y, [1, 2])

    def recurrent(w, h, xs):
        for i in tf.range(4):
            h = tf.tanh(tf.matmul(h, w) + xs[i])
        return h

    cases = {mlp: [(3, 4), (4,), (2, 3)], convnet: [(3, 3, 2, 4), (2, 4, 4, 2)], recurrent: [(3, 3), (2, 3), (4, 2, 3)]}
    for function, shapes in cases.items():
        arguments = [tf.constant(values(*shape)) for shape in shapes]
        compiled = tf.function(function, jit_compile=True)
        with tf.GradientTape() as tape:
            for argument in arguments:
                tape.watch(argument)
            results = function(*arguments)
            results = results if isinstance(results, tuple) else (results,)
            total = sum((i + 1) * tf.reduce_sum(result) for i, result in enumerate(results))
        gradients = tape.gradient(total, arguments)
        stage = "stablehlo" if function is mlp else "stablehlo_serialized"
        code = compiled.experimental_get_compiler_ir(*arguments)(stage=stage)
        write(folder, function.__name__, code, arguments, results, gradients)


# --- IREE

IN_IREE = """
module @distances {
  func.func public @pairwise(%x: tensor<4x3xf32>, %y: tensor<5x3xf32>) -> (tensor<4x5xf32>, tensor<4xi32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %a = stablehlo.broadcast_in_dim %x, dims = [0, 2] : (tensor<4x3xf32>) -> tensor<4x5x3xf32>
    %b = stablehlo.broadcast_in_dim %y, dims = [1, 2] : (tensor<5x3xf32>) -> tensor<4x5x3xf32>
    %d = stablehlo.subtract %a, %b : tensor<4x5x3xf32>
    %s = stablehlo.multiply %d, %d : tensor<4x5x3xf32>
    %sum = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [2]
      : (tensor<4x5x3xf32>, tensor<f32>) -> tensor<4x5xf32>
    %i = stablehlo.iota dim = 0 : tensor<4xi32>
    return %sum, %i : tensor<4x5xf32>, tensor<4xi32>
  }
}
"""


def iree(folder):
    from iree import compiler, runtime

    tool = os.path.join(os.path.dirname(sys.executable), "iree-opt")
    code = subprocess.run(
        [tool, "-", "--emit-bytecode"], input=IN_IREE.encode(), capture_output=True, check=True
    ).stdout
    arguments = [values(4, 3), values(5, 3)]
    compiled = compiler.compile_str(IN_IREE, target_backends=["vmvx"], input_type="stablehlo")
    module = runtime.load_vm_flatbuffer(compiled, driver="local-task")
    write(folder, "distances", code, arguments, [result.to_host() for result in module.pairwise(*arguments)])


if __name__ == "__main__":
    _, producer, into = sys.argv
    os.makedirs(into, exist_ok=True)
    {"torch_xla": torch_xla, "torchax": torchax, "tensorflow": tensorflow, "iree": iree}[producer](into)
