"""Finds out what an artifact is, and who can read it, from its bytes and without running it."""

from __future__ import annotations

import calendar
import collections
import dataclasses
import datetime
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxexp import _jax
from jaxexp._api.exported import reader
from jaxexp._errors import ExportError
from jaxexp._kernel.artifact import module_head, words
from jaxexp._kernel.artifact.chain import chain, check_modules
from jaxexp._kernel.artifact.inspection import shown_node
from jaxexp._kernel.artifact.module_head import Bytecode
from jaxexp._kernel.artifact.words import Facts, counted, listed, span
from jaxexp._kernel.codec import nodes
from jaxexp._kernel.codec.dtypes import DTYPES
from jaxexp._kernel.module import mlir
from jaxexp._kernel.read.decode import verified
from jaxexp._kernel.releases import table
from jaxexp._kernel.releases.table import RELEASES, Release, number
from jaxexp._kernel.write.reader import reader_of
from jaxexp._native import Artifact
from jaxexp._public import part_of, public

# The promise of jax.export ("Compatibility guarantees" in https://docs.jax.dev/en/latest/export/export.html).
PROMISED_MONTHS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A range of JAX releases whose `jax.export` cannot load an artifact, for the same reason.

    Attributes:
        first: the oldest release.
        last: the newest release.
        reason: the reason.
    """

    first: str
    last: str
    reason: str

    def __str__(self) -> str:
        return f"{span(self.first, self.last)}: {self.reason}"


@public
@dataclasses.dataclass(frozen=True, slots=True)
class Compatibility:
    """The format of an artifact, and the releases of JAX that can load it. `print` shows it as text.

    A release can load an artifact if it decodes the signature and parses the module, perhaps at the first call. Whether
    the function then runs depends on the custom calls, devices and registered pytree node types of the process.
    `jax.export` reads nodes of unregistered types, and dicts with keys that are not strings, only in a process that
    imported jaxexp. `readers` and `refusals` are about `jax.export` without jaxexp, `jaxexp_readers` about jaxexp. If a
    release refuses an artifact, ``migrate(artifact, to="0.6.2")`` rewrites it for that release, or raises an error that
    says why not.

    Attributes:
        fun_name: the name of the function.
        jax_version: the release of JAX that wrote it; None if the artifact does not say so (before JAX 0.11.1).
        writers: the oldest and the newest release of JAX that write artifacts like this one.
        layout: the generation of its format, in words.
        serialization_version: the version number in its first slot; several layouts share one.
        stablehlo: the version of StableHLO that the module was written for; None if it is not a portable artifact.
        dialects: the dialects of the module.
        operations: the kinds of operations in the module.
        custom_calls: how many operations call each custom call target; None if the module cannot be parsed here.
        dtypes: the dtypes of the arguments and results.
        custom_nodes: its custom pytree nodes: their serialized names, or the names of unregistered classes.
        generic_nodes: the custom nodes whose classes this process lacks; jaxexp loads them as `GenericNode`.
        platforms: the platforms that the module was lowered for.
        nr_devices: how many devices it was lowered for.
        calling_convention_version: the version of the calling convention.
        vjp_order: how many VJPs it holds.
        readers: ranges of JAX releases whose `jax.export` loads it, each as (oldest, newest).
        refusals: why the other releases cannot load it.
        jaxexp_readers: ranges of JAX releases on which jaxexp loads it, each as (oldest, newest): the releases with a
            jaxlib that parses its module.
        loaded_here: whether `load` returns a function in this process.
        unreadable_here: why jaxexp cannot load it in this process, or cannot call the function because the module is
            damaged or too new; None if it can.
        jax_export_version: the installed JAX.
        jax_export_refuses: why the installed `jax.export` cannot load it without jaxexp; None if it can.
        expired_flag_helps: whether the installed `jax.export` refuses it now, but loads it if the flag
            ``jax_export_deserialize_expired_versions`` is on.
        promised_until: the day until which new releases of `jax.export` promise to load it; None if its writer is
            unknown, or if only jaxexp reads its pytree nodes.
    """

    fun_name: str
    jax_version: str | None
    writers: tuple[str, str]
    layout: str
    serialization_version: int
    stablehlo: str | None
    dialects: tuple[str, ...]
    operations: tuple[str, ...]
    custom_calls: Mapping[str, int] | None
    dtypes: tuple[str, ...]
    custom_nodes: tuple[str, ...]
    generic_nodes: tuple[str, ...]
    platforms: tuple[str, ...]
    nr_devices: int
    calling_convention_version: int
    vjp_order: int
    readers: tuple[tuple[str, str], ...]
    refusals: tuple[Refusal, ...]
    jaxexp_readers: tuple[tuple[str, str], ...]
    loaded_here: bool
    unreadable_here: str | None
    jax_export_version: str
    jax_export_refuses: str | None
    expired_flag_helps: bool
    promised_until: datetime.date | None

    def readable_by(self, version: str) -> bool:
        """Whether the `jax.export` of a release can load it.

        Args:
            version: a release of JAX, as in ``"0.10.2"`` or ``"jax-0.10.2"``; or ``"12w"`` for the newest release
                twelve weeks before the installed one.

        Raises:
            ExportError: the release is not known.
        """
        asked = release_of(version, "readable_by").number
        return any(number(first) <= asked <= number(last) for first, last in self.readers)

    def __str__(self) -> str:
        facts = facts_of(self)
        facts.append(("loaded by", f"JAX {_spans(self.readers)}" if self.readers else "no release of JAX"))
        facts += [("" if i else "refused by", f"JAX {refusal}") for i, refusal in enumerate(self.refusals)]
        lines = words.text(self.fun_name, facts).splitlines()
        return "\n".join(textwrap.fill(line, 100, subsequent_indent=" " * 16, break_long_words=False) for line in lines)


part_of(Compatibility, Refusal)


def runs_of(found: Compatibility) -> list[tuple[str, str]]:
    """The releases of `jax.export` in order, each with the reason why they refuse an artifact; "" if they load it."""
    runs = [(first, last, "") for first, last in found.readers]
    runs += [(refusal.first, refusal.last, refusal.reason) for refusal in found.refusals]
    return [(span(first, last), why) for first, last, why in sorted(runs, key=lambda run: number(run[0]))]


def facts_of(found: Compatibility) -> Facts:
    """All facts about an artifact, except the releases of `jax.export` that load it."""
    written_for = "not a portable artifact" if found.stablehlo is None else f"StableHLO {found.stablehlo}"
    calls = f"not known: JAX {found.jax_export_version} does not read the module"  # which is whole
    if found.custom_calls is not None:
        calls = words.custom_calls(found.custom_calls, note=_since)
    return [
        ("platforms", words.lowered_for(found.platforms, found.nr_devices)),
        (
            "written by",
            f"JAX {found.jax_version or span(*found.writers)}, serialization version {found.serialization_version}, "
            f"calling convention {found.calling_convention_version}",
        ),
        ("layout", found.layout),
        (
            "module",
            f"{counted(len(found.operations), 'kind')} of operations, {written_for}, dialects {listed(found.dialects)}",
        ),
        ("custom calls", calls),
        ("derivatives", words.derivatives(found.vjp_order)),
        ("dtypes", listed(found.dtypes)),
        ("custom nodes", listed(found.custom_nodes)),
        ("jaxexp", _by_jaxexp(found)),
        ("jax.export", _by_jax_export(found)),
    ]


def _by_jaxexp(found: Compatibility) -> str:
    where = f"on JAX {_spans(found.jaxexp_readers)}" if found.jaxexp_readers else "on no JAX that is known here"
    if found.unreadable_here is None:
        generic = f", with generic nodes for {listed(found.generic_nodes)} (no such class here)"
        return f"loads it here{generic if found.generic_nodes else ''}, as {where}"
    if found.loaded_here:
        return f"loads it here, but cannot call it: {found.unreadable_here}. It can {where}"
    return f"cannot load it here: {found.unreadable_here}. It loads it {where}"


def _by_jax_export(found: Compatibility) -> str:
    loads = f"does not load it: {found.jax_export_refuses}" if found.jax_export_refuses else "loads it"
    if found.expired_flag_helps:
        loads += "; with jax_export_deserialize_expired_versions it does"
    if found.promised_until is not None:
        loads += f". Its promise of {PROMISED_MONTHS} months ends on {found.promised_until}"
    return f"{found.jax_export_version} {loads}"


def to_json(found: Compatibility) -> dict[str, Any]:
    until = found.promised_until
    return {**dataclasses.asdict(found), "promised_until": None if until is None else until.isoformat()}


def from_json(fields: dict[str, Any]) -> Compatibility:
    """Makes the `Compatibility` again.

    Raises:
        TypeError: the fields are not those of a `Compatibility`.
        ValueError: a field is of another kind.
    """
    made: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    for name in ("readers", "jaxexp_readers"):
        made[name] = tuple((first, last) for first, last in fields[name])
    made["refusals"] = tuple(Refusal(**refusal) for refusal in fields["refusals"])
    if (until := fields["promised_until"]) is not None:
        made["promised_until"] = datetime.date.fromisoformat(until)
    return Compatibility(**made)


def release_of(reader: str, parameter: str) -> Release:
    """The release that a user asks about, in the form that `compatibility=` takes; or an ExportError."""
    return reader_of(reader, parameter, or_max=False).release


def compatibility_of(buffer: Any) -> Compatibility:
    """The result of the public function `compatibility`, for an artifact in a buffer."""
    artifact = verified(buffer)
    check_modules(artifact)
    facts = _Facts.of(artifact)
    installed = table.at(_jax.installed_release)
    refused = _why_not(installed, facts)
    writers = _writers(artifact, facts)
    loaded, unreadable, custom_calls, generic_nodes = _try_here(artifact)
    reasons = [(release, _why_not(release, facts)) for release in RELEASES]
    return Compatibility(
        fun_name=artifact.fun_name,
        jax_version=artifact.jax_version,
        writers=writers,
        layout=_layout(facts, artifact.jax_version),
        serialization_version=artifact.serialization_version,
        stablehlo=facts.head.stablehlo,
        dialects=tuple(sorted(facts.head.dialects)),
        operations=tuple(sorted(facts.head.operations)),
        custom_calls=custom_calls,
        dtypes=tuple(map(_dtype_name, sorted(facts.dtypes))),
        custom_nodes=tuple(sorted(facts.custom_nodes)),
        generic_nodes=generic_nodes,
        platforms=artifact.platforms,
        nr_devices=artifact.nr_devices,
        calling_convention_version=facts.calling_convention_version,
        vjp_order=sum(1 for _ in chain(artifact)) - 1,
        readers=_readers(reasons),
        refusals=tuple(Refusal(first, last, reason) for first, last, reason in _runs(reasons) if reason is not None),
        # jaxexp reads every layout, if jaxlib parses the module.
        jaxexp_readers=_readers([(r, _too_new(r, facts)) for r in RELEASES if r.number >= _jax.OLDEST_JAX]),
        loaded_here=loaded,
        unreadable_here=unreadable,
        jax_export_version=jax.__version__,
        jax_export_refuses=refused,
        expired_flag_helps=refused is not None and _why_not(installed, facts, expired=True) is None,
        promised_until=None if facts.own_nodes else _promised_until(artifact.jax_version or writers[0]),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that decide who can load an artifact."""

    version: int
    calling_convention_version: int
    short_device_count: int
    long_device_count: int
    dtypes: frozenset[int]
    custom_nodes: frozenset[str]
    own_nodes: frozenset[str]  # the custom nodes that are stored in jaxexp's own way
    hlo_sharding_alone: bool
    named_shardings: bool
    listed: bool  # whether avals and shardings are listed in full, and not only by index
    indexed: bool
    head: Bytecode

    @classmethod
    def of(cls, artifact: Artifact) -> _Facts:
        own: set[str] = set()

        def noted(auxdata: bytes, name: str | None) -> tuple[str | None, tuple[str, ...]] | None:
            known = shown_node(auxdata, name)
            if known is not None and known[0] is not None:
                own.add(known[0])
            return known

        facts: dict[str, Any] = artifact.facts(noted)
        for name in ("dtypes", "custom_nodes"):
            facts[name] = frozenset(facts[name])
        facts["own_nodes"] = frozenset(own | facts["custom_nodes"] & nodes.OWN_NAMES)
        return cls(version=artifact.serialization_version, head=module_head.read(artifact.module()), **facts)


def _why_not(release: Release, facts: _Facts, expired: bool = False) -> str | None:
    """Why the `jax.export` of a release cannot load an artifact; None if it can.

    `expired` is its flag ``jax_export_deserialize_expired_versions``.
    """
    accepted = table.serialization_version(release).accepted
    if accepted is not None and facts.version not in accepted:
        return f"serialization version {facts.version} (it reads {listed(accepted, separator=' or ')})"
    if facts.custom_nodes and not release.custom_nodes:
        return "custom pytree nodes (since JAX 0.4.35)"
    if facts.own_nodes:
        reader = "it reads only if jaxexp is imported" if release.number >= _jax.OLDEST_JAX else "only jaxexp reads"
        nodes = f"pytree nodes that {reader}: {listed(sorted(facts.own_nodes), most=_NAMED)}"
        # Importing jaxexp helps only if nothing else is in the way.
        other = _why_not(release, dataclasses.replace(facts, own_nodes=frozenset()), expired)
        if other is None:
            return nodes
        has_jaxexp = release.number >= _jax.OLDEST_JAX
        neither = ", which jaxexp does not read there, either" if has_jaxexp and _too_new(release, facts) else ""
        return f"{nodes}; and {other}{neither}"
    if unknown := sorted(kind for kind in facts.dtypes if not 0 <= kind < release.dtypes):
        return f"the dtype{'s' * (len(unknown) > 1)} {listed(unknown, _dtype_name)}"
    if release.number < table.LONG_DEVICE_COUNT and facts.short_device_count <= 0:
        return "a newer layout (that of JAX 0.9.1)"
    if release.number >= table.REFUSAL_OF_EXPIRED:
        if facts.hlo_sharding_alone:
            return "an old form of shardings (of JAX 0.8.3 or older)"
        if facts.long_device_count == 0 and not expired:
            return "an expired layout (of JAX 0.8.1 or older)"
    if not facts.listed and release.number < table.INDICES:
        return "a newer layout (types and shardings only by index)"
    return _too_new(release, facts)


def _too_new(release: Release, facts: _Facts) -> str | None:
    """Why a release cannot read the module, with jaxexp or without; None if it can."""
    parts = [what for first, what in table.needs(facts.head) if first.number > release.number]
    return f"the module contains {listed(parts)}" if parts else None


def _readers(reasons: list[tuple[Release, str | None]]) -> tuple[tuple[str, str], ...]:
    """The first and the last release of each run that can read."""
    return tuple((first, last) for first, last, reason in _runs(reasons) if reason is None)


def _runs(reasons: list[tuple[Release, str | None]]) -> Iterator[tuple[str, str, str | None]]:
    """The first and the last release of each run with the same reason."""
    for reason, run in itertools.groupby(reasons, key=lambda pair: pair[1]):
        releases = [release.version for release, _ in run]
        yield releases[0], releases[-1], reason


def _writers(artifact: Artifact, facts: _Facts) -> tuple[str, str]:
    if (version := artifact.jax_version) is not None:
        return version, version
    first, _, last = artifact.writer.partition(" to ")  # a range without an end comes with a jax_version
    last = last or first
    # A release writes only what it reads.
    needed = [release for release, _ in table.needs(facts.head)]
    if facts.head.stablehlo is not None and (release := table.first_to_read(facts.head.stablehlo)):
        needed.append(release)
    needed += [r for r in RELEASES if r.dtypes > max(facts.dtypes, default=0)][:1]
    needed += [r for r in RELEASES if r.custom_nodes][: 1 if facts.custom_nodes else 0]
    oldest = max([table.release(first), *needed], key=lambda release: release.number)
    return (oldest.version, last) if oldest.number <= number(last) else (first, last)


def _layout(facts: _Facts, jax_version: str | None) -> str:
    counts = {
        (True, False): "16-bit device count",
        (True, True): "16-bit and 32-bit device count",
        (False, True): "32-bit device count",
    }
    parts = [counts[facts.short_device_count > 0, facts.long_device_count > 0]]
    if facts.indexed:
        parts.append("avals and shardings by index" + " as well as listed" * facts.listed)
    if facts.hlo_sharding_alone:
        parts.append("HloShardings")
    if facts.named_shardings:
        parts.append("NamedShardings")
    if jax_version is not None:
        parts.append("jax_version")
    return listed(parts)


def _try_here(artifact: Artifact) -> tuple[bool, str | None, dict[str, int] | None, tuple[str, ...]]:
    """Whether jaxexp loads an artifact in this process, why it cannot load or call it, the custom calls of its module,
    and its generic nodes, as far as they can be known.
    """
    loaded, unreadable, custom_calls, generic = False, None, None, set[str]()
    try:
        with _jax.make_ir_context() as context:
            module = mlir.parse(bytes(artifact.module()), context)
            custom_calls = collections.Counter(target for target, _ in mlir.custom_calls(module))
    except ExportError as error:
        unreadable = str(error)
    try:  # the module can be parsed even if the signature names something that is unknown here
        exported = reader.decode(artifact)
        generic = nodes.generic((exported.in_tree, exported.out_tree))
        loaded = True
    except ExportError as error:
        unreadable = str(error)
    calls = None if custom_calls is None else dict(sorted(custom_calls.items()))
    return loaded, unreadable, calls, tuple(sorted(generic))


def _promised_until(writer: str) -> datetime.date | None:
    try:
        written = table.release(writer).date
    except ExportError:
        return None
    years, month = divmod(written.month - 1 + PROMISED_MONTHS, 12)
    year, month = written.year + years, month + 1
    return datetime.date(year, month, min(written.day, calendar.monthrange(year, month)[1]))


_NAMED = 4  # nodes in a reason


def _dtype_name(kind: int) -> str:
    return str(DTYPES[kind]) if 0 <= kind < len(DTYPES) else f"number {kind}"


def _since(target: str) -> str:
    since = table.custom_call_since(target)
    return "" if since is None else f", since JAX {'.'.join(map(str, since))}"


def _spans(spans: tuple[tuple[str, str], ...]) -> str:
    return listed(spans, lambda one: span(*one))
