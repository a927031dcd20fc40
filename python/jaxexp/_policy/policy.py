"""`Policy`: what a loaded artifact may contain. Its modules are checked, not only what it says about itself."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import tomllib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from jaxexp._errors import ExportError, ExportTypeError, cause
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.artifact.words import name_of_order
from jaxexp._kernel.io import files
from jaxexp._public import public

from .limits.limits import Limits

if TYPE_CHECKING:
    from jaxexp._kernel.function.data import ExportedData
    from jaxexp._native import Artifact


@public
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The allowed contents of an artifact. `load` and `deserialize` check the function and all VJPs in the artifact.

    The default allows operations that jaxexp understands and custom calls that JAX promises to keep stable. It allows
    no callbacks and no effects, and does not limit sizes. In every field, None allows everything.

    An allowed module is still a program: docs/guide/policy.md lists what a policy promises.

    Attributes:
        custom_calls: allowed targets of custom calls, in addition to the stable ones. ``*``, ``?`` and ``[...]`` match
            as in file names, for example in ``"my_library.*"``. Unless this is None, calls of LAPACK must also have the
            arrays that the routine reads and writes.
        stable_custom_calls: whether custom calls that JAX promises to keep stable are allowed without a name in
            `custom_calls`. They include native code such as LAPACK's (``"lapack_*"``), and Pallas kernels
            (``"tpu_custom_call"``, ``"mosaic_gpu_v2"``). With False, only calls that compute nothing are allowed, such
            as ``"Sharding"``; the guide lists them.
        callbacks: whether the module may call back to Python.
        effects: allowed effects. A name is the type of a JAX effect, with or without its module; or the target of a
            custom call that declares side effects (stable targets need no entry); or ``"infeed"``, ``"outfeed"``,
            ``"send"`` or ``"recv"``, which exchange data with the host or other programs. Wildcards work as in
            `custom_calls`.
        operations: allowed operations and attributes that jaxexp does not understand, by their full names, such as
            ``"mhlo.add"``. The other fields do not apply to them. Wildcards work as in `custom_calls`.
        platforms: the allowed platforms, such as ``("cpu", "cuda")``; all platforms of the artifact must be among them.
            Unless this is None, an artifact that was exported with `DisabledSafetyCheck.platform` is refused.
        unregistered_nodes: whether the trees of arguments and results may have nodes of classes that are not registered
            for serialization in this process. If so, the artifact chooses the classes of results by name from the
            loaded classes.
        max_devices: how many devices the artifact, its meshes, its shardings and its collective operations may use. A
            mesh or a sharding in a form that is unknown to jaxexp is refused.
        max_vjp_order: how many VJPs an artifact may have.
        max_artifact_bytes: the largest size of an artifact, in bytes. A larger file is not read.
        max_module_bytes: the largest size of a module, in bytes.
        max_operations: how many operations a module may have.
        max_arguments: how many arrays a function may take.
        max_results: how many arrays a function may return.
        max_array_bytes: the largest size of an array in a module, in bytes. Dimensions that are not constant count as
            1.
        max_weights: how many weights an artifact may have in files beside it.
        max_weight_bytes: the largest size of all weights together, in bytes, in files and in memory.
        max_case_bytes: the largest size of all arrays of cases together, in bytes, with arrays in a file beside the
            artifact and drawn random arrays.

    Example:
        >>> policy = Policy(custom_calls=("my_kernel",), platforms=("cpu",), max_devices=1)
        >>> exported = load("uploaded.jaxexp", policy=policy)

    Raises:
        ExportError: a field does not exist, its value is not a collection of names, a bool or a number as it must be,
            or a platform is misspelt. If a type is wrong, the error is also a TypeError.
    """

    custom_calls: Collection[str] | None = ()
    callbacks: bool | None = False
    stable_custom_calls: bool | None = True
    effects: Collection[str] | None = ()
    operations: Collection[str] | None = ()
    platforms: Collection[str] | None = None
    unregistered_nodes: bool | None = True
    max_devices: int | None = None
    max_vjp_order: int | None = None
    max_artifact_bytes: int | None = None
    max_module_bytes: int | None = None
    max_operations: int | None = None
    max_arguments: int | None = None
    max_results: int | None = None
    max_array_bytes: int | None = None
    max_weights: int | None = None
    max_weight_bytes: int | None = None
    max_case_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                object.__setattr__(self, field.name, _checked(field.name, value))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """The policy in a TOML file with the fields of `Policy`, as for ``jaxexp verify --policy``.

        A field that is left out has its default. TOML has no None: ``["*"]`` allows every name.

        Raises:
            ExportError: the file is not TOML, or has a name that is not a field of a policy. If a type is wrong, the
                error is also a TypeError.
            OSError: the file cannot be read, or is a pipe or a device.

        Example:
            >>> Policy.from_toml("policy.toml")  # platforms = ["cpu"]
        """
        path = os.fsdecode(path)
        try:
            with files.regular(path) as file:
                fields = tomllib.loads(file.read().decode("utf-8-sig"))  # editors on Windows write a mark first
        except (ValueError, RecursionError) as error:  # also for text that is not UTF-8
            raise ExportError(f"{path!r} is not a TOML file: {error}") from cause(error)
        try:
            return cls(**fields)
        except ExportError as error:
            raise type(error)(f"{path!r}: {error}") from error
        except ValueError as error:  # a number of too many digits
            raise ExportError(f"{path!r}: {error}") from cause(error)

    def check(self, exported: ExportedData) -> None:
        """Raises an error if a function, or a VJP in its artifact, contains something that the policy does not allow.

        `load` and `deserialize` call this. An allowed function runs with other code from then on, as
        docs/guide/policy.md says. So it is not equal to a function without a policy; its hash stays the same.

        Args:
            exported: a loaded function. If it was exported in this process instead, its VJPs are not checked.

        Raises:
            PolicyError: the policy does not allow something. The error names it, its place, and the field that would
                allow it.
            DeserializationError: a module is damaged, or does not fit the signature.
            TypeError: `exported` is not a function of jaxexp.
        """
        from jaxexp._kernel.function import data, vjps

        from .module.check import check_functions

        if not isinstance(exported, data.ExportedData):
            raise ExportTypeError(
                f"check takes a jaxexp.Exported, not {type(exported)}: jaxexp.Exported.from_jax makes it from a "
                "jax.export.Exported, and jaxexp.load from a file"
            )
        limits = Limits(self)
        if (artifact := data.artifact_of(exported)) is not None:
            self.check_size(artifact.size)
            _check_files(limits, artifact)
        limits.vjp_order(vjps.stored_orders(exported), exported.fun_name)
        check_functions(limits, vjps.stored_chain(exported))

    def check_declared(self, artifact: Artifact) -> None:
        """Raises an error if an artifact states that it has something that the policy does not allow.

        `load` and `deserialize` call this before they decode the artifact. `check` finds the rest.

        Raises:
            PolicyError: as in `check`.
        """
        from jaxexp._kernel.codec import nodes

        limits, name = Limits(self), artifact.fun_name
        _check_files(limits, artifact)
        for order, link in enumerate(chain(artifact)):
            where = name_of_order(name, order)
            limits.vjp_order(order, name)
            sizes = link.unchecked_module().nbytes, *link.counts
            limits.declared(where, *sizes, link.nr_devices, link.platforms, link.runs_anywhere)
            if limits.refuses_unregistered_nodes:
                limits.unregistered_nodes(nodes.unregistered_in(link), where)

    def check_size(self, size: int) -> None:
        """Raises an error if an artifact is larger than `max_artifact_bytes`.

        Raises:
            PolicyError: the artifact is larger. The error names both sizes.
        """
        Limits(self).at_most("max_artifact_bytes", size, "bytes", "the artifact")


def _check_files(limits: Limits, artifact: Artifact) -> None:
    where = f"the artifact of {artifact.fun_name}"
    limits.cases(artifact, where)
    if (found := artifact.weights()) is not None:
        _, tensors, _ = found
        limits.at_most("max_weights", len(tensors), "weights", where)
        limits.at_most("max_weight_bytes", sum(size for _, _, size, _ in tensors), "bytes of weights", where)


def _with_known_fields(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor. It refuses unknown fields, and names similar ones."""

    @functools.wraps(init)
    def checked(self: Policy, /, *args: Any, **fields: Any) -> None:
        known = Policy.__dataclass_fields__
        for name in fields.keys() - known.keys():
            similar = difflib.get_close_matches(name, known, 3)
            meant = f"did you mean {' or '.join(similar)}?" if similar else f"its fields are {', '.join(known)}"
            raise ExportTypeError(f"Policy has no field {name!r}: {meant}")
        init(self, *args, **fields)

    return checked


Policy.__init__ = _with_known_fields(Policy.__init__)  # type: ignore[method-assign]


def check_is_policy(given: object) -> None:
    if isinstance(given, Policy):
        return
    advice = "such as Policy(platforms=('cpu',))"
    if isinstance(given, Mapping):
        advice = "which takes such fields as keywords: Policy(**fields)"
    elif isinstance(given, (str, os.PathLike)):
        advice = f"and Policy.from_toml({os.fspath(given)!r}) reads one from a file"
    raise ExportTypeError(f"policy= takes a jaxexp.Policy or None, {advice}; found {type(given)}")


def _checked(name: str, value: Any) -> Any:
    said = f"Policy({name}={value!r})"
    if name in ("callbacks", "stable_custom_calls", "unregistered_nodes"):
        if not isinstance(value, bool):
            raise ExportTypeError(f"{said}: expected True, False, or None, found {type(value)}")
        return value
    if name.startswith("max_"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ExportTypeError(f"{said}: expected an int, or None, found {type(value)}")
        if value < 0:
            raise ExportError(f"{said}: expected a number of at least 0")
        return value
    if isinstance(value, str):
        raise ExportTypeError(f"{said}: expected a tuple of names, or None, found one str: say {name}=[{value!r}]")
    if not isinstance(value, Collection):
        raise ExportTypeError(f"{said}: expected a tuple of names, or None, found {type(value)}")
    if (wrong := next((item for item in value if not isinstance(item, str)), None)) is not None:
        raise ExportTypeError(f"{said}: expected a tuple of names, or None, found {wrong!r} in it, of {type(wrong)}")
    if name == "platforms":
        for platform in value:
            _check_platform(said, platform)
    # Equal policies look the same in every process.
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def _check_platform(said: str, platform: str) -> None:
    """Refuses a misspelt platform of JAX. Other names are allowed: plugins may add platforms."""
    known = ("cpu", "cuda", "rocm", "tpu")
    if platform in known:
        return
    lower = platform.lower()
    if meant := ["cuda", "rocm"] if lower == "gpu" else difflib.get_close_matches(lower, known, 1, 0.7):
        did = f"did you mean {' or '.join(map(repr, meant))}? JAX's own are {', '.join(known)}"
        raise ExportError(f"{said}: there is no platform {platform!r}; {did}")
