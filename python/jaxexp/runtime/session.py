"""`Session`: a function that runs without JAX."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from jaxexp import _runtime
from jaxexp._errors import DeserializationError, ExportError, ExportTypeError, RunError, WeightsError, cause, shown
from jaxexp._fleet.places.source import source, split
from jaxexp._fleet.places.verify import check_executables
from jaxexp._kernel.artifact.words import counted, listed, name_of_order, no_weight
from jaxexp._kernel.io import compile_cache, files
from jaxexp._kernel.io.other_files import HEAD, instead_of_executables
from jaxexp._public import no_attribute

from . import checked, plugins
from .arrays import Argument, Array, dtype_of, to_numpy
from .programs import Trust, program_of
from .trees import MismatchError, Tree, tree_of

if TYPE_CHECKING:
    from jaxexp._fleet.archive.archive import Handle
    from jaxexp._fleet.places.load import Check, CheckReport
    from jaxexp._fleet.places.source import Given
    from jaxexp._fleet.places.weights import Rename
    from jaxexp._policy.policy import Policy
    from jaxexp._signing.signed_by import SignedBy

    from .programs import OpenedProgram


def _member(given: Any, trust: Trust, *, is_signed: bool) -> Handle | None:
    """The member of an archive that was given, if it is one; it has to be signed if the session's own files are."""
    from jaxexp._fleet.archive.archive import Handle

    is_path = isinstance(given, (str, os.PathLike)) and split(os.fsdecode(given))[1] is not None
    if not is_path and not isinstance(given, Handle):
        if isinstance(given, (str, os.PathLike)) and files.is_zip(os.fsdecode(given)):
            raise ExportError(f"{given!r:.200} is an archive: name a member of it, as in '{given!s:.200}::NAME'")
        return None
    found = source(given, "with_weights", trust.signed_by if is_path else None, trust.stable).handle
    if is_signed and found is not None and found._opened.signed is None:
        raise ExportError(f"{found.label!r}: open its archive with Archive.open(path, signed_by=...)")
    return found


def _array(plugin: _runtime.Plugin, name: str, value: Any) -> np.ndarray:
    if type(value) is not np.ndarray:
        value = Argument(plugin, f"the weight {name!r}", "", "any array").foreign(value)
    if isinstance(value, _runtime.Array):
        value = to_numpy(value, dtype_of(value.dtype))
    return np.asarray(value, value.dtype.newbyteorder("="), order="C")


class _Weights(dict[str, Array]):
    def __missing__(self, name: str) -> NoReturn:
        raise no_weight(name, self)


class Value(NamedTuple):
    """An argument or a result of a `Session`.

    Attributes:
        path: its place in a call, such as ``"args[0]['x']"``, or in the result of a call, such as ``"result[1]"``.
        dtype: the name of its dtype, such as ``"float32"``.
        shape: its dimensions; a symbolic one is text.
    """

    path: str
    dtype: str
    shape: tuple[int | str, ...]


class Session:
    """A function of an artifact, on a PJRT plugin. It takes and returns NumPy's arrays, and needs no JAX.

    Call it like the exported function: with the same positional and keyword arguments, in the same tuples, lists and
    dicts. An argument may be a number, an `Array` of a session, or an array of NumPy or of a library with
    ``__dlpack__`` or ``__array__``. Arrays must have the dtypes of the function; only Python's numbers are converted.
    PRNG keys are their ``uint32`` data, and ``float0`` is ``bool``. Dtypes that NumPy lacks, such as ``bfloat16``, need
    the package ``ml_dtypes``.

    Results are in the tuples, lists and dicts of the function. Other nodes are a `jaxexp.GenericNode`. As arguments,
    such nodes may be a `GenericNode`, or an object with the same children, such as an instance of the original class.
    If the artifact does not name the children, use `call_by_path`.

    Several threads may call one session and load others: loading, compiling, calling and reading results release the
    GIL.

    Attributes:
        name: the name of the function.
        platform: the plugin's platform, such as ``"cpu"``.
        arguments: the arguments of a call, each as a `Value`, without weights that were found.
        results: the results of a call, each as a `Value`.

    Example:
        >>> model = Session("model.jaxexp")
        >>> model(np.ones((2, 4), np.float32))
        >>> model = Session("fleet.zip::resnet/b8", plugin="cuda", devices=[1])
    """

    __module__ = "jaxexp.runtime"

    def __init__(
        self,
        artifact: Given,
        *,
        plugin: str | os.PathLike[str] | None = None,
        options: Mapping[str, str | int | float | bool] | None = None,
        devices: Sequence[int] | None = None,
        weights: str | os.PathLike[str] | None = None,
        executables: str | os.PathLike[str] | None = None,
        policy: Policy | None = None,
        signed_by: SignedBy | None = None,
        stable: bool = False,
        sizes: Iterable[Mapping[str, int]] = (),
        pad: bool = False,
        only_sizes: bool = False,
        warm_up: bool = True,
    ) -> None:
        """Loads a function, and checks that the plugin has everything that it needs. The first call compiles it.

        Args:
            artifact: as in `jaxexp.load`: a path, a member of an archive as in ``"fleet.zip::resnet/b8"``, a URL, a
                `Handle`, a binary file object, or a buffer.
            plugin: the file of a PJRT plugin, or a platform whose plugin is installed, such as ``"cuda"``. The default
                is the one in the environment variable ``JAXEXP_PLUGIN``, or else the plugin that `find_plugin` finds
                for the platforms of the artifact. A process starts each plugin once.
            options: the plugin's own options for its start, such as ``{"cpu_device_count": 8}``. Plugins ignore options
                that they do not know.
            devices: the numbers of the plugin's devices, as many as the function was exported for; by default the first
                ones.
            weights: a file of tensors, or an index of several files (``.safetensors.index.json``), in place of the
                artifact's own.
            executables: a file that `save_executable` wrote. It has native code: trust it as you trust a program. Code
                that does not fit this plugin and machine is not used, and `why_compiled` says why. Missing code is
                looked for in the folder of `jaxexp.compile_cache`.
            policy: the allowed contents of the artifact, as in `jaxexp.load`.
            signed_by: the trusted signer of the artifact, its weights and the executables, as in `jaxexp.load`. All
                files are read as a whole now, and compared with their signatures before their bytes are used.
            stable: whether files of weights and archives are copied to memory when they are opened, instead of mapped,
                as in `jaxexp.load`.
            sizes: sets of sizes of the symbolic dimensions, as in ``[{"batch": 1}, {"batch": 8}]``, in addition to the
                `sizes` that the artifact was saved with. `compile` compiles the function for each set.
            pad: whether a call with other sizes runs the code of the next larger set: its arguments are padded with
                zeros, and its results are cut. This is done only along dimensions that the artifact declares
                (``save(pad=...)``). Otherwise, the function is compiled for the sizes of the call.
            only_sizes: whether only the code of these sets may run. A call that needs other code raises a `RunError`,
                which says why the call was not padded.
            warm_up: whether `compile` also calls the function once for each set of sizes, with zeros and its weights,
                because the first call of compiled code takes tens of milliseconds longer. Functions with effects, with
                loops that may not end for zeros, or with an error for zeros are not warmed up.

        Raises:
            RunError: the plugin cannot be found or started, or lacks a platform, a device or a custom call of the
                artifact; or a set of sizes does not have one size for each symbolic dimension.
            DeserializationError: the artifact is damaged, or `executables` is damaged or not a file of executables. The
                error names the file.
            PolicyError: the policy does not allow something in the artifact.
            SignatureError: a file has no signature by `signed_by`.
            WeightsError: the artifact has weights, and is behind a URL; a tensor in the file of `weights` is missing,
                or has another dtype or shape; or `signed_by` is given, and a file of weights is missing or was
                replaced.
            ExportError: both `policy` and `executables` are given; or `signed_by` is given, and the artifact is not in
                a file on this machine.
            KeyError: the archive has no such member.
            OSError: a file cannot be opened, or `weights` does not exist.
            TypeError: an argument has the wrong type.
        """
        if policy is not None and executables is not None:
            raise ExportError(
                "policy= and executables= exclude each other, because executables are native code, which no policy can "
                "check. Leave out one of the two"
            )
        code = "" if executables is None else checked.path("executables", executables)
        what = "the path of a file (Session.with_weights takes arrays)"
        if isinstance(weights, str) and split(weights)[1] is not None:
            raise ExportError(
                f"weights= takes the path of a file, and Session.with_weights the member {weights!r:.200}"
            )
        own_weights = "" if weights is None else checked.file("weights", weights, what)
        numbers, sets = checked.devices(devices), checked.sets_of_sizes(sizes)
        for flag, value in (("stable", stable), ("pad", pad), ("only_sizes", only_sizes), ("warm_up", warm_up)):
            checked.flag(flag, value)
        self._trust = Trust(policy, signed_by, stable)
        opened = program_of(artifact, self._trust)
        program, name = opened.program, opened.source.name
        native = plugins.start(plugin, program.platforms, options)
        with files.named_in_errors(name):
            if program.calls_lapack() and native.platform == "cpu":
                plugins.provide_lapack()
        cache = compile_cache.current()
        folder, most = ("", 0) if cache is None else (cache.folder, cache.max_bytes)
        if executables is not None:
            check_executables(code, opened.check_file)
        try:
            with files.named_in_errors(code or name), files.named_in_os_errors(code):
                function = native.load(
                    program, numbers, code, own_weights, stable, sets, pad, only_sizes, warm_up, folder, most,
                    opened.check_file,
                )  # fmt: skip
        except RunError as error:
            raise error if not name else RunError(f"{name}: {error}", error.reason) from None
        if own_weights:
            function.weights()  # opens the file: what does not fit is said before the session is used
        self._opened: OpenedProgram | None = opened
        self._unused: OpenedProgram | None = opened if function.has_weights and not own_weights else None
        self._from, self._weights_from = name, repr(own_weights) if own_weights else ""
        self._set(native, program, function, 0, opened.check_file)

    def _set(
        self, plugin: _runtime.Plugin, program: _runtime.Program, function: _runtime.Function, order: int,
        check_file: Check | None,
    ) -> None:  # fmt: skip
        self._plugin, self._program, self._function, self._order = plugin, program, function, order
        self._check_file = check_file
        self.name: str = function.name
        self.platform: str = plugin.platform
        self.arguments: tuple[Value, ...] = tuple(map(_value, function.arguments))
        self.results: tuple[Value, ...] = tuple(map(_value, function.results))
        self._leaves = [Argument(plugin, path, dtype, text) for path, dtype, _, text in function.arguments]
        self._dtypes = [leaf.name for leaf in self._leaves]
        in_nodes, out_nodes = program.trees(order)
        args, kwargs = tree_of(in_nodes, "in_tree").children
        # Weights that were found are the first argument; a VJP takes them one by one.
        skipped = len(args.children) - len(function.arguments) if order else 1
        self._args: Sequence[Tree] = args.children[skipped:] if function.has_weights else args.children
        self._first = skipped if function.has_weights and order else 0
        self._kwargs = kwargs
        self._results = tree_of(out_nodes, "out_tree")

    def _with(self, function: _runtime.Function, order: int, weights: str = "") -> Session:
        made = type(self).__new__(type(self))
        made._opened, made._unused, made._trust = None, None, self._trust
        made._from, made._weights_from = self._from, weights or self._weights_from
        made._set(self._plugin, self._program, function, order, self._check_file)
        return made

    def _on(self, file: str, check_file: Check | None, called: str) -> Session:
        """The function with the weights in a file, which is opened now: what does not fit is said before a call."""
        made = self._with(self._function.with_weights(file, check_file), self._order, called)
        made._function.weights()
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, and returns its results as arrays of NumPy.

        Raises:
            RunError: an argument does not fit, or the plugin fails.
            WeightsError: a file of weights is missing, damaged or replaced.
            ImportError: an argument or a result has a dtype of `ml_dtypes`, which is not installed.
        """
        dtypes = self._result_dtypes  # an error comes before the work
        return self._results.build(map(to_numpy, self._call(self._flat(args, kwargs)), dtypes))

    def on_device(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, and returns an `Array` on the device for each result, which may still be computed. The
        next call takes it without a copy.

        If the function donates an argument, the `Array` that is passed for it cannot be used afterwards.

        Raises:
            RunError: an argument does not fit, or the plugin fails.
            WeightsError: as in `__call__`.

        Example:
            >>> for x in batches:
            ...     state = step.on_device(state, x)
        """
        return self._results.build(map(Array, self._call(self._flat(args, kwargs))))

    def call_by_path(self, arguments: Mapping[str, Any]) -> Any:
        """Calls the function with its arguments by their paths, such as ``{"args[0]['x']": x}``. The attribute
        `arguments` lists the paths. The results are those of `__call__`.

        Raises:
            RunError: as in `__call__`; or a path has no argument, or an argument is missing.
            WeightsError: as in `__call__`.
            ImportError: as in `__call__`.
        """
        if not isinstance(arguments, Mapping):
            raise ExportTypeError(
                f'call_by_path takes a dict from paths to arrays, such as {{"args[0]": x}}, not {type(arguments)}'
            )
        given = dict(arguments)
        paths = [leaf.path for leaf in self._leaves]
        if len(set(paths)) < len(paths):
            raise self._refused("has several arguments of one path, because long paths are cut")
        if unknown := given.keys() - set(paths):
            raise self._refused(f"has no argument {min(unknown, key=str)}; it has {listed(paths, most=10)}")
        if missing := [path for path in paths if path not in given]:
            raise self._refused(f"lacks the argument {missing[0]}")
        dtypes = self._result_dtypes
        return self._results.build(map(to_numpy, self._call([given[path] for path in paths]), dtypes))

    def put(self, array: Any, device: int = 0) -> Array:
        """Copies an array to a device of the plugin, for any number of calls.

        Args:
            array: a number or an array, as in a call.
            device: the number of the device, as in `devices` of the session.

        Raises:
            RunError: there is no such device, or it cannot hold the array.
        """
        dtype = getattr(array, "dtype", "float32")
        name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]  # of "torch.float32"
        leaf = Argument(self._plugin, "array", name, "")
        return Array(self._plugin.put(leaf.taken(array), leaf.name, checked.device("device", device)))

    @property
    def weights(self) -> Mapping[str, Array]:
        """The weights by name: the arrays on the devices that calls use. They are never donated. The mapping is
        read-only; `with_weights` takes other weights.

        Raises:
            WeightsError: as in `__call__`.
        """
        self._use_weights()
        return MappingProxyType(_Weights({n: Array(native) for n, native in self._function.weights().items()}))

    def with_weights(self, weights: Any, *, rename: Rename | None = None) -> Session:
        """The same function with other weights. Nothing is compiled again.

        Args:
            weights: a file of tensors, or an index of several files, which is opened now. Or a member of an archive, as
                in ``"fleet.zip::resnet/b8"`` or as a `Handle`; `check` then repeats its cases. Or arrays by name, such
                as the `weights` of a session, or nested in dicts, lists and tuples, with paths as names
                (``layers/0/w``). A `UserWarning` names arrays that are not used.
            rename: as in `jaxexp.Exported.with_weights`. Renamed weights, members and arrays are copied now, through a
                temporary file.

        Raises:
            RunError: the function takes no weights, a value in place of an array is not an array, or the member has a
                program with other operations.
            SignatureError: the session has `signed_by`, and a file or an archive is not signed.
            WeightsError: a weight is missing or has another dtype or shape, or the member has no weights.
            ExportError: `rename` maps a name that no weight has; or `weights` is a member, and the archive was opened
                without the `signed_by` or `stable` of the session.
            KeyError: the archive has no such member.
            OSError: a file does not exist, or cannot be read or written.
            TypeError: `weights` is none of these, or `rename` is neither a mapping nor a function.
        """
        from jaxexp._fleet.places.weights import (  # most sessions keep theirs
            as_file,
            check_used,
            in_arrays,
            in_file,
            in_member,
        )

        if isinstance(weights, Session):
            raise ExportTypeError("with_weights takes arrays or a file, not a session: pass its weights")
        handle = _member(weights, self._trust, is_signed=self._check_file is not None)
        if handle is None and rename is None and isinstance(weights, (str, os.PathLike)):
            file = checked.file("weights", weights)
            return self._on(file, self._check_file, repr(file))
        args, _ = tree_of(self._program.trees(0)[0], "in_tree").children
        if not args.children or (names := args.children[0].keys) is None:
            raise self._refused("takes no weights: its first argument is not a dict of arrays")
        place: str | None = None  # what errors call it
        if handle is not None:
            tensors, place = in_member(handle), handle.label
        elif isinstance(weights, (str, os.PathLike)):
            tensors, place = in_file(os.fsdecode(weights), self._check_file), os.fsdecode(weights)
        else:
            tensors = in_arrays(weights, functools.partial(_array, self._plugin))
        with as_file(tensors, own := list(map(str, names)), rename) as file:
            if place is None:
                check_used(tensors, own, rename)
            other = "arrays" if place is None else repr(place)
            try:
                made = self._on(file, None, other)  # which opens the file: it is about to go
            except WeightsError as error:
                error.file = place
                raise
        if handle is not None:
            made._opened = program_of(handle, self._trust._replace(signed_by=None))
            made._from, made._weights_from = made._opened.source.name, ""
            if made._opened.program.inventory(0) != self._program.inventory(0):
                raise self._refused(f"has another program than {made._from}: open that by Session(...)")
        return made

    def vjp(self) -> Session:
        """The VJP: a function of all arguments, each array as its own argument, and then of a cotangent for each
        result. It returns a tuple: a cotangent for each array that the artifact takes, including each weight.

        Weights that were found are passed to it, too. Cotangents of integers are arrays of ``bool``.

        Raises:
            RunError: the artifact has no VJP.
        """
        function = self._function.vjp()
        order = self._order + 1
        if function is None:
            raise self._refused(f"has no VJP of order {order}: it was saved with vjp_order={self._order}")
        made = self._with(function, order)
        made._unused = self._unused
        return made

    def check(self, *, tolerance: Any = None, max_drawn_bytes: int = 1 << 32) -> CheckReport:
        """Repeats the recorded calls of the artifact and of its VJPs, and compares the results with the recorded ones.

        Args:
            tolerance, max_drawn_bytes: as in `jaxexp.Exported.check`.

        Returns:
            A report, as from `jaxexp.check`.

        Raises:
            ExportError: the tolerance is negative or not finite.
            RunError: this is the session of a VJP, or has other weights.
            PolicyError: the arrays of cases are larger than the policy of the session allows.
            SignatureError: the session has `signed_by`, and a file of cases is not signed.
            DeserializationError: the artifact is damaged.
            OSError: its file cannot be opened again.
        """
        from jaxexp._fleet.places.load import cases_in, check_by

        if self._opened is None:
            raise self._refused("has no cases of its own: check the session that was loaded")
        opened = self._opened
        opened.check_is_same()
        cases = cases_in(opened.source, opened.buffer, self._trust.policy, opened.check_file)
        chain: list[Session] = [self]

        def session(order: int) -> Session:
            while len(chain) <= order:
                chain.append(chain[-1].vjp())
            return chain[order]

        def call(order: int, leaves: Sequence[Any]) -> Sequence[Any]:
            one = session(order)
            dtypes = one._result_dtypes
            return list(map(to_numpy, one._call(leaves), dtypes))

        def paths(order: int) -> list[str]:
            return [value.path for value in session(order).results]

        facts = {"platform": self.platform, "devices": str(self._plugin.nr_devices)}
        return check_by(call, paths, self.name, cases, facts, tolerance, max_drawn_bytes)

    def compile(self, sizes: Mapping[str, int] | None = None) -> None:
        """Compiles the function, opens its weights, and warms it up (see `warm_up` of the session), before the first
        call does.

        Args:
            sizes: the size of each symbolic dimension, as in ``{"batch": 8}``. A function with symbolic dimensions is
                compiled for each set of sizes. The default is all sets in the `sizes` of the session and the artifact.

        Raises:
            RunError: the plugin cannot compile the function, or sizes are missing or not needed.
            WeightsError: its weights are missing or damaged.
        """
        self._use_weights()
        self._function.compile(None if sizes is None else checked.sizes(sizes))

    def save_executable(self, path: str | os.PathLike[str]) -> None:
        """Adds the compiled code to a file for the ``executables`` of a later session. The file is created if it does
        not exist. Code that it has already is not added. A VJP has its own code: save it, too.

        Raises:
            RunError: the plugin cannot compile the function, or cannot serialize its code.
            ExecutablesError: the file is not a file of executables.
            OSError: the file cannot be written.
        """
        with files.named_in_errors(path), files.named_in_os_errors(path):
            try:
                self._function.save_executable(checked.path("path", path))
            except DeserializationError as error:
                error.found = instead_of_executables(error.found, files.beginning(os.fsdecode(path), HEAD))
                raise

    @property
    def why_compiled(self) -> str:
        """Why the function was compiled in this process in spite of ``executables`` or a `jaxexp.compile_cache`. It is
        empty if code from there is used, if neither was given, and before the function is compiled.
        """
        return self._function.why_compiled()

    if not TYPE_CHECKING:  # type checkers would no longer report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, "; a session is called itself, as in session(x)" if name == "call" else "")

    def __copy__(self) -> Session:
        return self

    def __reduce__(self) -> Any:
        raise ExportTypeError(
            f"the session of {self.name} cannot be pickled, because it has code and arrays on devices: load the "
            "artifact in each process"
        )

    def __repr__(self) -> str:
        place = f" of {self._from!r}" if self._from else ""
        place += f" with weights from {self._weights_from}" if self._weights_from else ""
        return shown(f"<Session {self.name}{place} on {self.platform}, {counted(len(self.arguments), 'argument')}>")

    @property
    def _described(self) -> str:
        return name_of_order(self._program.name, self._order)

    @functools.cached_property
    def _result_dtypes(self) -> list[np.dtype[Any]]:
        return [dtype_of(value.dtype) for value in self.results]

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if len(args) != len(self._args):
            beside = " beside its weights" if self._function.has_weights else ""
            if self._order:
                count = sum(kind == 0 for kind, *_ in self._program.trees(self._order - 1)[1])
                beside += f" (the last {'one is a cotangent' if count == 1 else f'{count} are cotangents'})"
            expected = counted(len(self._args), "positional argument")
            others = [name for name in kwargs if name not in (self._kwargs.keys or ())]
            by_position = f"; pass {listed(others, repr, most=5)} by position, as in the export" if others else ""
            lacks = not self._order and len(args) == len(self._args) - 1 and self._args[0].keys is not None
            advice = _WITHOUT_WEIGHTS if lacks and not self._function.has_weights else ""
            raise self._refused(f"takes {expected}{beside}, and not {len(args)}{by_position}{advice}")
        leaves: list[Any] = []
        try:
            for index, (tree, value) in enumerate(zip(self._args, args, strict=True), self._first):
                tree.flatten(value, f"args[{index}]", leaves)
            if kwargs or self._kwargs.children:
                self._kwargs.flatten(kwargs, "kwargs", leaves)
        except MismatchError as error:
            raise RunError(f"calling {self._described}: {error}", "argument") from cause(error)
        return leaves

    def _use_weights(self) -> None:
        """Before the first use of weights that are mapped: later, the file must not be written to."""
        if self._unused is not None:
            self._unused.check_mapped()
            self._unused = None

    def _call(self, leaves: Sequence[Any]) -> Sequence[_runtime.Array]:
        if self._unused is not None:
            self._use_weights()
        try:
            given = [leaf.taken(value) for leaf, value in zip(self._leaves, leaves, strict=True)]
        except RunError as error:
            raise RunError(f"calling {self._described}: {error}", error.reason) from None
        try:
            return self._function.call(given, self._dtypes)
        except RunError as error:
            if not self._order:
                raise
            text = str(error).replace(f"calling {self.name}:", f"calling {self._described}:", 1)
            raise RunError(text, error.reason) from None

    def _refused(self, what: str) -> RunError:
        return RunError(f"{self._described} {what}", "argument")


_WITHOUT_WEIGHTS = (
    ". The first argument is a dict of arrays, such as weights: Session(path) finds those beside the artifact, and "
    "weights= takes the path of their file"
)


def _value(described: tuple[str, str, tuple[str, ...], str]) -> Value:
    path, dtype, shape, _ = described
    return Value(path, dtype, tuple(int(dim) if dim.isascii() and dim.isdecimal() else dim for dim in shape))
