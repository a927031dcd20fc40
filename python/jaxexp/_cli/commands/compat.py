"""`jaxexp compat`: tells who can load an artifact."""

from __future__ import annotations

import collections
import contextlib
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxexp._cli import complaints, inputs, options
from jaxexp._cli.options import option
from jaxexp._cli.page import Column, Page, print_json
from jaxexp._errors import ExportError
from jaxexp._fleet.passes.many import described
from jaxexp._fleet.places.source import source
from jaxexp._kernel.artifact.words import counted, listed, span
from jaxexp._kernel.releases.table import installed, number

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility

_BY_JAXEXP, _UNCALLABLE = "jaxexp only", "not callable"
_BAD = (_UNCALLABLE, complaints.REFUSED, complaints.DAMAGED, complaints.UNREADABLE)
_MARKS = {"loaded": "good", **dict.fromkeys(_BAD, "bad")}


@options.command("Say which releases of JAX load an artifact.", options.IMPORTS, options.HEADERS)
def command(
    files: tuple[str, ...] = options.FILES,
    reader: str | None = option(
        "--reader READER", "Ask only about this release of JAX: 0.6.2, or 12w for the newest release twelve weeks ago."
    ),
    quiet: bool = options.quiet("loadable"),
    as_json: bool = option("--json", "Print a JSON list, with an object for each artifact."),
    folders: inputs.Folders = options.FOLDERS,
    spread: options.Spread = options.workers("The number of processes; by default only this one."),
) -> int:
    """Say which releases of JAX can load artifacts, and which releases wrote them.

    FILE is an artifact, or an archive or a folder, for all artifacts in it. With several artifacts, each gets a row:
    its writer, the releases that load it, and whether it can be loaded and called here. The totals follow. If some
    releases refuse a single artifact, the last line says how 'migrate' helps; the migration is tried, but nothing is
    written. Nothing is run. JAX is imported, to parse the modules.

    The exit status is 0 if jaxexp can load and call all artifacts here or, with --reader, if that release can load
    them. It is 1 if an artifact is refused, damaged, unreadable or not callable. It is 75 if the only problem was a
    server or cluster that could not be reached: try again.

    Example:
      jaxexp compat model.jaxexp
      jaxexp compat --reader 0.6.2 fleet.zip *.jaxexp || echo 'migrate first'
      jaxexp compat --reader 12w 'fleet.zip::resnet/*'
    """
    from jaxexp._compat.compatibility import release_of

    with complaints.misused():
        asked = None if reader is None else release_of(reader, "--reader").version
    judged = [_judged(name, one, asked) for name, one in spread.results(files, folders, "compat", described)]
    if len(judged) == 1 and isinstance(judged[0].facts, Exception):
        raise judged[0].facts
    shown = [one for one in judged if not (quiet and one.is_good)]
    if as_json:
        print_json([_in_json(one, asked) for one in shown])
    else:
        page = Page()
        if len(judged) > 1 or (asked is not None and shown):
            _show_all(page, judged, quiet, asked, files, folders.said())
        elif shown:
            _show(page, *shown[0][:2])
        page.write()
    reader = f"jaxexp with JAX {installed()}" if asked is None else f"JAX {asked}"
    refused, uncallable = (
        [one.name for one in judged if one.state == state and not isinstance(one.facts, Exception)]
        for state in (complaints.REFUSED, _UNCALLABLE)
    )
    if uncallable:
        them = "it" if len(uncallable) == 1 else "them"
        complaints.complain(f"{reader} loads {listed(uncallable, repr, most=_NAMED)}, but cannot call {them}")
    if refused:
        remedy = f"; {_remedy_for(asked, *judged[0][:2])}" if asked is not None and len(judged) == 1 else ""
        complaints.complain(f"{reader} does not load {listed(refused, repr, most=_NAMED)}{remedy}")
    unreadable = [(one.name, one.facts) for one in judged if isinstance(one.facts, Exception)]
    if as_json:
        complaints.complain_of(unreadable)
    elif unreadable:
        complaints.complain(f"{len(unreadable):,} of {counted(len(judged), 'artifact')} cannot be read")
    return complaints.FAILED if refused or uncallable else complaints.status_of(*(error for _, error in unreadable))


class _Judged(NamedTuple):
    """An artifact; whether it is loaded, and here also whether it can be called; and why not."""

    name: str
    facts: Any  # a Compatibility, or the error of an artifact that cannot be read
    state: str
    reason: str

    @property
    def is_good(self) -> bool:
        return self.state in ("loaded", _BY_JAXEXP)


def _judged(name: str, facts: Compatibility | Exception, asked: str | None) -> _Judged:
    def judged(state: str, reason: str) -> _Judged:
        return _Judged(name, facts, state, reason.removeprefix("cannot read the artifact: "))

    if isinstance(facts, Exception):
        return judged(complaints.state_of(facts), complaints.without_name(complaints.said(facts), name, facts))
    if asked is not None:
        reasons = _reasons(facts, asked)
        return judged(complaints.REFUSED, reasons[0]) if reasons else judged("loaded", "")
    if facts.unreadable_here is not None:
        return judged(_UNCALLABLE if facts.loaded_here else complaints.REFUSED, facts.unreadable_here)
    notes = [facts.jax_export_refuses] if facts.jax_export_refuses else []
    if facts.generic_nodes:
        notes.append(f"generic nodes for {listed(facts.generic_nodes, most=_NAMED)}")
    return judged(_BY_JAXEXP if facts.jax_export_refuses else "loaded", "; ".join(notes))


def _reasons(found: Compatibility, reader: str) -> list[str]:
    """Why a release refuses an artifact."""
    return [r.reason for r in found.refusals if number(r.first) <= number(reader) <= number(r.last)]


_NAMED = 8  # artifacts in a message
_REASONS = 20  # below a table


def _show_all(
    page: Page, judged: list[_Judged], quiet: bool, asked: str | None, files: tuple[str, ...], skipped: str
) -> None:
    """Prints a row for each artifact, and totals. With a release, the rows are only about that one."""
    # Reasons become equal where they differ only in digests and large numbers.
    kinds = complaints.kinds(one.reason for one in judged)
    judged = [one._replace(reason=kind) for one, kind in zip(judged, kinds, strict=True)]
    state = Column("here" if asked is None else f"by JAX {asked}", marks=_MARKS)
    reasons = collections.Counter((one.state, one.reason) for one in judged if one.reason).most_common()
    many_alike = any(count > 1 for _, count in reasons)  # then reasons are written out once, below
    # On a terminal, a row has only the number of its reason; in a pipe, each row can stand alone.
    marks = {verdict: f"({i})" if i <= _REASONS else "other" for i, (verdict, _) in enumerate(reasons, 1)}
    is_marked = many_alike and page.is_terminal
    about = [Column("artifact", style="name")]
    if asked is None:
        about += [Column("written by JAX", optional=True), Column("jax.export of", optional=True)]
    rows: list[tuple[str, ...]] = []
    for one in judged:
        if not (quiet and one.is_good):
            reason = marks.get((one.state, one.reason), "") if is_marked else one.reason
            rows.append((one.name, *(_age(one.facts) if asked is None else ()), one.state, reason))
    page.table([*about, state, Column("because of")], rows)
    page.blank()
    page.totals([one.state for one in judged], skipped)
    if many_alike:
        page.blank()
        columns = [Column(""), Column("artifacts", right=True), state, Column("because of")]
        page.table(columns, [(marks[v] if is_marked else "", f"{count:,}", *v) for v, count in reasons[:_REASONS]])
        if len(reasons) > _REASONS:
            page.line(f"  and {counted(len(reasons) - _REASONS, 'other reason')}: --json has all")
    if advice := list(_advice(judged, asked, files)):
        page.blank()
        page.fields(advice)


def _age(found: Compatibility | Exception) -> tuple[str, str]:
    """Who wrote an artifact, and which releases of jax.export load it."""
    if isinstance(found, Exception):
        return "", ""
    return found.jax_version or span(*found.writers), listed(found.readers, lambda one: span(*one))


def _in_json(one: _Judged, asked: str | None) -> dict[str, Any]:
    from jaxexp._compat.compatibility import to_json

    reader = {} if asked is None else {"reader": asked}
    said = {"file": one.name, **reader, "verdict": one.state, "reason": one.reason or None}
    return said | ({"error": complaints.said(one.facts)} if isinstance(one.facts, Exception) else to_json(one.facts))


def _advice(judged: list[_Judged], asked: str | None, files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What to do about artifacts that are not loaded as they should be; not tried, because there may be many."""
    to_migrate = _BY_JAXEXP if asked is None else complaints.REFUSED
    if names := [one.name for one in judged if one.state == to_migrate]:
        release = installed() if asked is None else asked
        given = names if len(names) == 1 < len(files) else files if len(files) <= _NAMED else ("IN...",)
        them = "it" if len(names) == 1 else "them"
        yield "remedy", f"{_migrate(given, asked)} rewrites {them} for JAX {release}, if that is possible"
    if any(not isinstance(one.facts, Exception) and one.facts.generic_nodes for one in judged):
        yield "generic nodes", "stand for classes that are not known here; --import MODULE imports what registers them"


def _show(page: Page, name: str, found: Compatibility) -> None:
    from jaxexp._compat.compatibility import facts_of, runs_of

    page.title(found.fun_name, name)
    page.fields(facts_of(found))
    page.blank()
    rows = [(releases, "refuses it" if why else "loads it", why) for releases, why in runs_of(found)]
    marks = Column("", marks={"loads": "good", "refuses": "bad"})
    page.table([Column("jax.export of", style="name"), marks, Column("because of")], rows)
    if remedy := "; ".join(_remedies(name, found)):
        page.blank()
        page.fields([("remedy", remedy)])


def _remedies(name: str, found: Compatibility) -> Iterator[str]:
    """How `migrate` helps releases that refuse an artifact, and jaxexp on releases where it cannot load it."""
    from jaxexp._compat.migrate import rewritten, rewritten_for_oldest

    if not found.refusals or found.unreadable_here is not None:
        return
    at = source(name, "compat")
    with at.named():
        buffer = at.read()
    with contextlib.suppress(ExportError):
        if found.jax_export_refuses and rewritten(buffer, None).jax_export_refuses is None:
            yield f"{_migrate([name], None)} writes one that JAX {found.jax_export_version} loads"
    with contextlib.suppress(ExportError):
        to, new = rewritten_for_oldest(buffer)
        if new.readable_by(to) and not found.readable_by(to):
            yield f"{_migrate([name], to)} writes one that JAX {to} loads; newer releases can be named, too"
        elif _is_in(to, new.jaxexp_readers) and not _is_in(to, found.jaxexp_readers):
            yield f"{_migrate([name], to)} writes one that jaxexp loads on JAX {to}"


def _remedy_for(asked: str, name: str, found: Compatibility) -> str:
    """What `migrate` does for one release that refuses an artifact."""
    from jaxexp._compat.migrate import rewritten

    at = source(name, "compat")
    try:
        with at.named():
            new = rewritten(at.read(), asked)
    except ExportError as error:
        return f"'jaxexp migrate' cannot write it for that release: {error}"
    if new.readable_by(asked):
        return f"{_migrate([name], asked)} writes one that it loads"
    reason = _reasons(new, asked)[0]
    if _is_in(asked, new.jaxexp_readers) and not _is_in(asked, found.jaxexp_readers):
        return f"{_migrate([name], asked)} writes one that jaxexp loads there; jax.export would still refuse {reason}"
    return f"'jaxexp migrate' does not help: it would still have {reason}"


def _migrate(given: Iterable[str], to: str | None) -> str:
    """A command line."""
    return f"'jaxexp migrate {'' if to is None else f'--to {to} '}{shlex.join(given)} NEW'"


def _is_in(version: str, spans: tuple[tuple[str, str], ...]) -> bool:
    return any(number(first) <= number(version) <= number(last) for first, last in spans)
