"""`from_stablehlo`: a module of another producer as a function."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxexp._api.exported import Exported
from jaxexp._kernel.export.lower import check_platforms, default_export_platform
from jaxexp._kernel.function.safety_check import DisabledSafetyCheck
from jaxexp._public import public

from . import module as modules
from . import source
from .importing import Importing

if TYPE_CHECKING:
    from typing_extensions import Buffer


@public
def from_stablehlo(
    module: str | os.PathLike[str] | Buffer,
    *,
    entry: str | None = None,
    name: str | None = None,
    platforms: Sequence[str] | None = None,
    shapes: Mapping[int, Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    results: Any = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    differentiable: bool = False,
) -> Exported:
    """Makes a function of a StableHLO module that another program wrote, such as PyTorch, TensorFlow or Reactant.jl.

    The signature is that of the module's public function: its types, shardings and donations. If the module has JAX's
    names for arguments and results, such as ``params['w']``, they are grouped in this way; otherwise a call takes one
    array after the other, and returns an array or a tuple of arrays.

    A module is a program. Import only what you trust, or save the function, and `load` it with a policy.

    Args:
        module: StableHLO text, MLIR bytecode (a portable artifact or not), or the path of a file with one of them. A
            str is text if it contains a line break or a brace. Text is parsed in a process of its own, which takes
            about a second.
        entry: the name of the function that is called. The default is ``main``, or the only public function.
        name: the name of the function here. The default is the name of the module, or that of its function.
        platforms: the platforms that it may be called on, as in `export`. The default is `default_export_platform()`.
            StableHLO is the same on all platforms, so name all that you need, unless it has custom calls.
        shapes: the shapes of arguments that have dynamic dimensions (``tensor<?x3xf32>``), by the index of the argument
            in the module. A shape is a text, such as ``"batch, 3"`` with names and sizes, or a tuple. Names become
            dimension variables, and the shapes of results follow from StableHLO's shape inference for some sizes.
        args, kwargs: the arguments of a call: pytrees with the indices of the module's arguments in the place of
            arrays, such as ``args=({"w": 0, "b": 1}, 2)``. Each index has to be there once.
        results: the result of a call in the same way. Results of the module that it leaves out are not returned.
        disabled_checks: safety checks to leave out, as in `export`: custom calls that are not known to be stable.
        differentiable: whether the function gets VJPs. They are those of the module as it is written: functions that
            its source stopped gradients in, or gave custom derivatives, are differentiated like all others. A cotangent
            of 0 stays 0, also times infinity or NaN. The first VJP is made now; `serialize` and `save` take any
            ``vjp_order``.

    Raises:
        DeserializationError: it is not a StableHLO module, or not clear which of its functions is meant.
        UnsupportedError: the module has something that no artifact can hold, such as operations of other dialects,
            tuples, tokens, replicas or quantized types; the message names it. Or with `differentiable`, an operation
            has no derivative: a loop of unknown length, a custom call, the bits of a number.
        ExportError: custom calls are not known to be stable; or `shapes`, `args`, `kwargs` or `results` do not fit the
            module.
        TypeError: `module` is neither text, bytes nor a path.
        OSError: the file cannot be read, or is a pipe or a device.

    Example:
        >>> model = from_stablehlo("model.mlirbc", args=({"weight": 0, "bias": 1}, 2), platforms=["cpu", "cuda"])
        >>> model.save("model.jaxexp")
    """
    chosen = (platforms,) if isinstance(platforms, str) else platforms
    checks = tuple(map(DisabledSafetyCheck.coerce, disabled_checks))
    how = Importing(
        Exported, entry, name, tuple(chosen or (default_export_platform(),)), shapes, args, kwargs, results, checks,
        differentiable,
    )  # fmt: skip
    content, file = source.contents(module)
    with modules.named(file):
        exported: Exported = how.function(source.bytecode(content))
        check_platforms(exported.fun_name, exported.platforms)
        return exported
