"""A module after reading: blocks of steps, which issue JAX's primitives when they run. Nothing here refers to MLIR."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxexp._errors import UnsupportedError, cause
from jaxexp._kernel.artifact.words import dtype_and_shape

from .array_type import Type
from .refused import RefusedError, too_deep

# The name of a step that renumbers values.
ALIAS = "alias"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One operation. Values have numbers, which are unique in a module.

    Steps with the same `run` have the same types and do the same.

    Attributes:
        name: the operation's name, such as ``"stablehlo.add"``.
        run: takes arrays for `inputs`, and returns those for `outputs`.
        inputs: the numbers of the values that it takes.
        outputs: the numbers of the values that it makes.
        types: their types.
        attributes: what else the operation says, for code that looks for patterns.
    """

    name: str
    run: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[Type, ...]
    attributes: Mapping[str, Any]

    def results(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Runs the step.

        Raises:
            RefusedError: JAX refuses it, or its results have other types than the module says.
        """
        try:
            results = self.run(*arguments)
        except UnsupportedError:  # with its own words
            raise
        except RecursionError:
            raise too_deep() from None
        except Exception as error:  # JAX's errors for operations that it refuses have any type
            raise RefusedError(self.name, f"{type(error).__name__}: {error}") from cause(error)
        for type_, result in zip(self.types, results, strict=True):
            if result.dtype != type_.dtype or result.shape != type_.shape:
                raise RefusedError(
                    self.name, f"became {dtype_and_shape(result.dtype, result.shape)} instead of {type_}"
                )
        return results


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class Block:
    """Steps one after the other; calling the block runs them, under whatever JAX is tracing.

    Attributes:
        parameters: the numbers of the values that it is called with.
        steps: what it does.
        results: the numbers of the values that it returns.
        captures: the numbers of values that it uses from the code around it.
    """

    parameters: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    captures: tuple[int, ...]

    @classmethod
    def of(cls, parameters: Sequence[int], steps: Sequence[Step], results: Sequence[int]) -> Block:
        """A block that captures the values that its steps take but do not make."""
        known, free = set(parameters), dict[int, None]()
        for step in steps:
            free.update(dict.fromkeys(number for number in step.inputs if number not in known))
            known.update(step.outputs)
        free.update(dict.fromkeys(number for number in results if number not in known))
        return cls(tuple(parameters), tuple(steps), tuple(results), tuple(free))

    def __call__(self, arguments: Sequence[Any], captured: Sequence[Any] = ()) -> list[Any]:
        """
        Raises:
            RefusedError: a step cannot be run.
        """
        values = dict(zip(self.captures, captured, strict=True))
        values.update(zip(self.parameters, arguments, strict=True))
        for step in self.steps:
            results = step.results([values[number] for number in step.inputs])
            values.update(zip(step.outputs, results, strict=True))
        return [values[number] for number in self.results]

    def __repr__(self) -> str:  # jaxprs print it
        return f"<{len(self.steps)} steps>"

    def only_operation(self, *, in_order: bool = False) -> str:
        """The name of the one operation that the block applies to its two parameters, `in_order` or not; "" if it does
        anything else.
        """
        if len(self.steps) != 1 or len(self.parameters) != 2 or self.steps[0].outputs != self.results:
            return ""
        (step,) = self.steps
        orders = [self.parameters] if in_order else [self.parameters, self.parameters[::-1]]
        return step.name if step.inputs in orders else ""

    def closed(self, constants: Mapping[int, np.ndarray[Any, Any]]) -> Block | None:
        """The same block with its captures inside, if they are all constants; otherwise None."""
        if not self.captures:
            return self
        if any(number not in constants for number in self.captures):
            return None
        values = tuple(constants[number] for number in self.captures)
        types = tuple(Type(value.shape, value.dtype) for value in values)
        first = Step("stablehlo.constant", lambda: values, (), self.captures, types, {})
        return Block(self.parameters, (first, *self.steps), self.results, ())
