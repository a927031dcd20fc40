"""`jaxexp compat`: tells who can load an artifact."""

from __future__ import annotations

import collections
import contextlib
import importlib.metadata
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jaxexp._cli import complaints, inputs, options
from jaxexp._cli.options import option
from jaxexp._cli.page import Column, Page, print_json
from jaxexp._errors import ExportError
from jaxexp._fleet.passes.one_by_one import described
from jaxexp._fleet.places.source import source
from jaxexp._kernel.artifact.words import counted, listed, span
from jaxexp._kernel.releases.table import number

if TYPE_CHECKING:
    from jaxexp._compat.compatibility import Compatibility

    _Described = tuple[str, Compatibility | Exception]

_BY_JAXEXP, _UNCALLABLE = "jaxexp only", "not callable"
_MARKS = {
    "loaded": "good",
    _UNCALLABLE: "bad",
    complaints.REFUSED: "bad",
    complaints.DAMAGED: "bad",
    complaints.UNREADABLE: "bad",
}


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
    found = _described(files, folders, spread)
    first: Any = found[0]
    verdicts = {name: _verdict(name, one, asked)[0] for name, one in found}
    hidden = {name for name, verdict in verdicts.items() if quiet and verdict in ("loaded", _BY_JAXEXP)}
    if as_json:
        print_json([_in_json(name, one, asked) for name, one in found if name not in hidden])
    else:
        page = Page()
        if len(found) > 1 or (asked is not None and not hidden):
            _show_all(page, found, asked, files, folders, hidden)
        elif not hidden:
            _show(page, *first)
        page.write()
    reader = f"jaxexp with JAX {importlib.metadata.version('jax')}" if asked is None else f"JAX {asked}"
    refused, uncallable = (
        [name for name, one in found if verdicts[name] == state and not isinstance(one, Exception)]
        for state in (complaints.REFUSED, _UNCALLABLE)
    )
    if uncallable:
        them = "it" if len(uncallable) == 1 else "them"
        complaints.complain(f"{reader} loads {listed(uncallable, repr, most=_NAMED)}, but cannot call {them}")
    if refused:
        remedy = f"; {_remedy_for(asked, *first)}" if asked is not None and len(found) == 1 else ""
        complaints.complain(f"{reader} does not load {listed(refused, repr, most=_NAMED)}{remedy}")
    unreadable = [(name, one) for name, one in found if isinstance(one, Exception)]
    if as_json:
        complaints.complain_of(unreadable)
    elif unreadable:
        complaints.complain(f"{len(unreadable):,} of {counted(len(found), 'artifact')} cannot be read")
    return complaints.FAILED if refused or uncallable else complaints.status_of(*(error for _, error in unreadable))


def _described(files: tuple[str, ...], folders: inputs.Folders, spread: options.Spread) -> list[_Described]:
    """The facts about the artifacts, or the errors of those that cannot be read, in the order of the files.

    Raises:
        Exception: there is only one artifact, and it cannot be read.
    """
    found = spread.results(files, folders, "compat", described)
    if len(found) == 1 and isinstance(found[0][1], Exception):
        raise found[0][1]
    return found


_NAMED = 8  # artifacts in a message
_REASONS = 20  # below a table


def _show_all(
    page: Page,
    found: list[_Described],
    asked: str | None,
    files: tuple[str, ...],
    folders: inputs.Folders,
    hidden: set[str],
) -> None:
    """Prints a row for each artifact, and totals. With a release, the rows are only about that one."""
    states, reasons_of = zip(*(_verdict(name, one, asked) for name, one in found), strict=True)
    # Verdicts with equal reasons where these differ only in digests and large numbers.
    verdicts = list(zip(states, complaints.kinds(reasons_of), strict=True))
    state = Column("here" if asked is None else f"by JAX {asked}", marks=_MARKS)
    reasons = collections.Counter(verdict for verdict in verdicts if verdict[1]).most_common()
    many_alike = any(count > 1 for _, count in reasons)  # then reasons are written out once, below
    # On a terminal, a row has only the number of its reason; in a pipe, each row can stand alone.
    marks = {verdict: f"({i})" if i <= _REASONS else "other" for i, (verdict, _) in enumerate(reasons, 1)}
    is_marked = many_alike and page.is_terminal
    about = [Column("artifact", style="name")]
    if asked is None:
        about += [Column("written by JAX", optional=True), Column("jax.export of", optional=True)]
    rows = [
        (
            name,
            *(_age(one) if asked is None else ()),
            verdict[0],
            marks.get(verdict, "") if is_marked else verdict[1],
        )
        for (name, one), verdict in zip(found, verdicts, strict=True)
        if name not in hidden
    ]
    page.table([*about, state, Column("because of")], rows)
    page.blank()
    page.totals([verdict for verdict, _ in verdicts], folders.said())
    if many_alike:
        page.blank()
        columns = [Column(""), Column("artifacts", right=True), state, Column("because of")]
        page.table(columns, [(marks[v] if is_marked else "", f"{count:,}", *v) for v, count in reasons[:_REASONS]])
        if len(reasons) > _REASONS:
            page.line(f"  and {counted(len(reasons) - _REASONS, 'other reason')}: --json has all")
    if advice := list(_advice(verdicts, found, asked, files)):
        page.blank()
        page.fields(advice)


def _age(found: Compatibility | Exception) -> tuple[str, str]:
    """Who wrote an artifact, and which releases of jax.export load it."""
    if isinstance(found, Exception):
        return "", ""
    return found.jax_version or span(*found.writers), listed(found.readers, lambda one: span(*one))


def _verdict(name: str, found: Compatibility | Exception, asked: str | None) -> tuple[str, str]:
    """Whether an artifact is loaded, and here also whether it can be called; and the reason why not."""
    if isinstance(found, Exception):
        return complaints.state_of(found), _reason(complaints.without_name(complaints.said(found), name, found))
    if asked is not None:
        reasons = [r.reason for r in found.refusals if number(r.first) <= number(asked) <= number(r.last)]
        return (complaints.REFUSED, reasons[0]) if reasons else ("loaded", "")
    if found.unreadable_here is not None:
        return _UNCALLABLE if found.loaded_here else complaints.REFUSED, _reason(found.unreadable_here)
    notes = [found.jax_export_refuses] if found.jax_export_refuses else []
    if found.generic_nodes:
        notes.append(f"generic nodes for {listed(found.generic_nodes, most=_NAMED)}")
    return _BY_JAXEXP if found.jax_export_refuses else "loaded", "; ".join(notes)


def _in_json(name: str, found: Compatibility | Exception, asked: str | None) -> dict[str, Any]:
    from jaxexp._compat.compatibility import to_json

    verdict, reason = _verdict(name, found, asked)
    facts = {"file": name, **({} if asked is None else {"reader": asked}), "verdict": verdict, "reason": reason or None}
    return facts | ({"error": complaints.said(found)} if isinstance(found, Exception) else to_json(found))


def _reason(message: str) -> str:
    return message.removeprefix("cannot read the artifact: ")


def _advice(
    verdicts: list[tuple[str, str]], found: list[_Described], asked: str | None, files: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """What to do about artifacts that are not loaded as they should be; not tried, because there may be many."""
    to_migrate = _BY_JAXEXP if asked is None else complaints.REFUSED
    if names := [name for (name, _), (verdict, _) in zip(found, verdicts, strict=True) if verdict == to_migrate]:
        release = importlib.metadata.version("jax") if asked is None else asked
        given = names if len(names) == 1 < len(files) else files if len(files) <= _NAMED else ("IN...",)
        them = "it" if len(names) == 1 else "them"
        yield "remedy", f"{_migrate(given, asked)} rewrites {them} for JAX {release}, if that is possible"
    if any(not isinstance(one, Exception) and one.generic_nodes for _, one in found):
        yield "generic nodes", "stand for classes that are not known here; --import MODULE imports what registers them"


def _show(page: Page, name: str, found: Compatibility) -> None:
    from jaxexp._compat.compatibility import facts_of, runs_of

    page.title(found.fun_name, name)
    page.fields(facts_of(found))
    page.blank()
    rows = [(releases, "refuses it" if why else "loads it", why) for releases, why in runs_of(found)]
    page.table(
        [
            Column("jax.export of", style="name"),
            Column("", marks={"loads": "good", "refuses": "bad"}),
            Column("because of"),
        ],
        rows,
    )
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
    reason = next(r.reason for r in new.refusals if number(r.first) <= number(asked) <= number(r.last))
    if _is_in(asked, new.jaxexp_readers) and not _is_in(asked, found.jaxexp_readers):
        return f"{_migrate([name], asked)} writes one that jaxexp loads there; jax.export would still refuse {reason}"
    return f"'jaxexp migrate' does not help: it would still have {reason}"


def _migrate(given: Iterable[str], to: str | None) -> str:
    """A command line."""
    return f"'jaxexp migrate {'' if to is None else f'--to {to} '}{shlex.join(given)} NEW'"


def _is_in(version: str, spans: tuple[tuple[str, str], ...]) -> bool:
    return any(number(first) <= number(version) <= number(last) for first, last in spans)
