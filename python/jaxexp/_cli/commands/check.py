"""`jaxexp check`: whether artifacts still compute what was recorded in them, here and elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxexp._cli import complaints, inputs, options, outputs
from jaxexp._cli.options import option
from jaxexp._cli.page import Column, Page, print_json, progress
from jaxexp._errors import ExportError, shown
from jaxexp._kernel.artifact.words import counted, cut, without_secrets
from jaxexp._kernel.io import files as file_system

from . import view

if TYPE_CHECKING:
    from jaxexp._api.cases.report import Checked, CheckReport
    from jaxexp._kernel.artifact.cases import Tolerance

PluginOption = str | int | float | bool
_How = Mapping[str, Any]  # what a check is told: the tolerance, and the most bytes that are drawn

HERE = "here"
_ERROR = "error"  # the verdict on an artifact that cannot be loaded

FLAG, PASS, LLVM = "flag", "pass", "LLVM"
_DISABLED = "--xla_disable_hlo_passes"
# XLA writes a file after each pass that changed a module: its number, the pipeline, and the passes before and after.
_DUMPED = re.compile(r"\.(\d{4,})\.[^.]*\.after_(?P<after>[\w-]+)\.before_[^.]+\.txt$")
_START, _MOST_TIME = "pipeline-start", 30.0  # seconds that each process may take beside ten times those of the first

# Checks an artifact in a process with these XLA_FLAGS, for at most so many seconds; None if there is no report.
Check = Callable[[str, float | None], "CheckReport | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class Blamed:
    """What makes a case differ."""

    case: str
    kind: str | None  # None if it differs without each flag and pass
    name: str  # the flags or the pass
    without: str  # how the case goes without them, in words
    tried: int  # how many checks were made until this one was found
    unusable: int  # in how many of them the function could not be compiled or called

    def __str__(self) -> str:
        unusable = f", {self.unusable:,} of them without a result" if self.unusable else ""
        tried = f"{counted(self.tried, 'check')}{unusable}"
        if self.kind is None:
            return shown(f"{self.case} differs also without each flag and each pass of XLA's ({tried})")
        what = {FLAG: "XLA_FLAGS ", PASS: "XLA's pass ", LLVM: "LLVM's optimizations, "}[self.kind] + self.name
        return shown(f"{self.case} without {what}: {self.without} ({tried})")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check of one artifact in one environment found."""

    file: str
    where: str
    report: CheckReport | None = None  # None if the artifact cannot be loaded there
    error: str = ""
    status: int = 0  # that the error asks for
    blamed: tuple[Blamed, ...] = ()  # what makes each of its differing cases differ

    @property
    def verdict(self) -> str:
        return _ERROR if self.report is None else self.report.verdict

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"file": self.file, "where": self.where, "verdict": self.verdict}
        if self.report is None:
            return said | {"error": self.error, "status": self.status}
        blamed = {"blamed": [dataclasses.asdict(one) for one in self.blamed]} if self.blamed else {}
        return said | {"report": self.report.to_json()} | blamed

    @classmethod
    def from_json(cls, said: Mapping[str, Any], where: str) -> Outcome:
        from jaxexp._api.cases.report import CheckReport

        if said["verdict"] == _ERROR:
            return cls(str(said["file"]), where, None, str(said["error"]), int(said["status"]))
        return cls(str(said["file"]), where, CheckReport.from_json(said["report"]))


@options.command("Check that artifacts still compute the recorded results.", options.IMPORTS, options.HEADERS)
def command(
    files: tuple[str, ...] = options.FILES,
    plugin: str | None = option(
        "--plugin PLUGIN", "Run without JAX on this PJRT plugin: its file, or a platform whose plugin is installed."
    ),
    plugin_options: dict[str, PluginOption] = option(
        "--option NAME=VALUE",
        "An option for the start of --plugin, such as cpu_device_count=8. May be repeated.",
        multiple=True,
        callback=lambda context, parameter, given: dict(map(_option, given)),
    ),
    results_file: str | None = option(
        "--results NPZ",
        "Make no calls: compare the results that 'jaxexp-run --cases -o NPZ' wrote to this file, without JAX.",
        type=click.Path(dir_okay=False),
    ),
    pythons: tuple[str, ...] = option(
        "--python PYTHON", "Check in a process of this interpreter, from an environment with jaxexp. May be repeated."
    ),
    is_matrix: bool = option("--matrix", "Check here, too, and print one table of artifacts and environments."),
    is_bisecting: bool = option(
        "--bisect",
        "If a case differs, check it again without each flag and pass of XLA, in separate processes, and name the "
        "first one without which it does not differ.",
    ),
    page_file: str | None = option(
        "--view PAGE",
        "Also write an HTML page about the artifact, with its module as a graph. If operations differ, colours show "
        "the errors.",
        type=click.Path(dir_okay=False),
    ),
    tolerance: Tolerance | None = options.tolerance(
        "The tolerance for all results, in place of the tolerances of the cases; 0 means equal numbers."
    ),
    max_drawn_bytes: int = option(
        "--max-drawn-bytes BYTES",
        "The largest size of the random arguments of a case; by default 4 GiB.",
        default=1 << 32,
    ),
    allow_none: bool = option("--allow-none", "Accept artifacts without cases."),
    quiet: bool = options.quiet("as recorded"),
    as_json: bool = option("--json", "Print a JSON list, with an object for each artifact and environment."),
    junit_file: str | None = option(
        "--junit XML", "Also write a JUnit report for CI to this file.", type=click.Path(dir_okay=False)
    ),
    folders: inputs.Folders = options.FOLDERS,
    spread: options.Spread = options.workers(
        "The number of processes; by default only this one. With --python, the number of interpreters at a time."
    ),
) -> int:
    """Repeat the recorded calls of artifacts, and compare the results with the recorded ones.

    FILE is an artifact, a member of an archive or a URL; or a folder or an archive, for all artifacts in it. With
    several artifacts, the last line has the totals by verdict. The exit status is 0 if all results are equal or close;
    1 if a result differs, a case cannot be called, or an artifact cannot be loaded or has no cases; 2 if the command
    line is wrong; 75 if the same command may succeed later. This runs the functions: check only artifacts that you
    trust.

    Example:
      jaxexp check model.jaxexp
      jaxexp check models/ fleet.zip --junit results.xml
      jaxexp check models/ --python old/bin/python --python new/bin/python
      jaxexp check model.jaxexp --plugin cuda
      jaxexp check model.jaxexp --results results.npz
      jaxexp check model.jaxexp --bisect
      jaxexp check model.jaxexp --view model.html
    """
    is_elsewhere = pythons or is_matrix or is_bisecting or spread.is_asked_for
    if plugin is not None and is_elsewhere:
        raise click.UsageError(
            "--plugin checks in this process: leave out --python, --matrix, --bisect, and options of workers"
        )
    if plugin_options and plugin is None:
        raise click.UsageError("--option is for a plugin: give --plugin, too")
    if pythons and (spread.executor or spread.journal):
        raise click.UsageError("--executor and --journal are for checks with this Python: leave out --python")
    if page_file is not None and (plugin is not None or pythons or spread.is_asked_for or files[1:]):
        raise click.UsageError(
            "--view is for a check of one artifact in this process: leave out --plugin, --python, options of workers, "
            "and other artifacts"
        )
    if results_file is not None and (is_elsewhere or plugin is not None or page_file is not None or files[1:]):
        raise click.UsageError(
            "--results compares what one artifact returned elsewhere: leave out --plugin, --python, --matrix, "
            "--bisect, --view, options of workers, and other artifacts"
        )
    for report in filter(None, (page_file, junit_file)):
        file_system.refuse_to_lose(report, "a report")
    how: dict[str, Any] = {"tolerance": tolerance, "max_drawn_bytes": max_drawn_bytes}
    at_once = spread.workers or 1
    found: list[Outcome] = []
    if is_matrix or not pythons:
        if page_file is not None:
            reports = _viewed(files[0], page_file, how)
        elif results_file is not None:
            reports = _of_results(files[0], results_file, tolerance)
        elif plugin is not None:
            reports = _on_plugin(files, folders, plugin, plugin_options, how)
        else:
            from jaxexp._fleet.passes.many import checked

            reports = spread.results(files, folders, "check", functools.partial(checked, **how))
        found += [_outcome(name, plugin or HERE, one) for name, one in reports]
    found += _elsewhere(pythons, files, folders, _options(how), at_once)
    if is_bisecting:
        found = [_bisected(one, _options(how), at_once) for one in found]
    if junit_file is not None:
        outputs.write(junit_file, _junit(found).encode(), force=True)
    chosen = [one for one in found if not quiet or _is_bad(one, allow_none)]
    if as_json:
        print_json([one.to_json() for one in chosen])
    else:
        page = Page()
        if is_matrix:
            _add_table(page, found, chosen)
            chosen = [one for one in found if one.report is not None and not one.report.ok]
        for one in chosen:
            if is_matrix:
                page.blank()
            _add(page, one, names_environments=is_matrix or len(pythons) > 1)
        _add_totals(page, found, folders)
        page.write()
    for one in found if not as_json else ():
        if one.report is None:
            complaints.complain(one.error if one.where == HERE else f"{one.where}: {one.error}")
    return complaints.status([one.status == complaints.TRY_AGAIN for one in found if _is_bad(one, allow_none)])


def _option(text: str) -> tuple[str, PluginOption]:
    name, is_given, value = text.partition("=")
    if not name or not is_given:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value


def _is_bad(one: Outcome, allow_none: bool) -> bool:
    from jaxexp._api.cases.report import NONE

    return one.report is None or not (one.report.ok or (allow_none and one.verdict == NONE))


def _outcome(name: str, where: str, found: CheckReport | Exception) -> Outcome:
    if isinstance(found, Exception):
        return Outcome(name, where, None, complaints.said(found), complaints.status_of(found))
    return Outcome(name, where, found)


_Reports = Iterable[tuple[str, "CheckReport | Exception"]]


def _viewed(file: str, page_file: str, how: _How) -> _Reports:
    """Checks an artifact, and writes a page about it and what was found."""
    from jaxexp._api.cases.report import of_report
    from jaxexp._fleet.places.load import check

    def written(source: inputs.Source) -> CheckReport:
        found = check(source.given, **how)
        outputs.write(page_file, view.page_of(source, check=of_report(found)).encode(), force=True)
        return found

    return inputs.read_each([inputs.artifact(file)], written)


def _of_results(file: str, results_file: str, tolerance: Tolerance | None) -> _Reports:
    """Compares what the calls returned elsewhere."""
    from jaxexp._api.cases.replaying import check_results
    from jaxexp._cli import arrays
    from jaxexp._fleet.places.load import cases_in

    stored = {name: one.array for name, one in arrays.read_all(results_file).items()}

    def compared(source: inputs.Source) -> CheckReport:
        artifact = source.read()
        return check_results(results_file, stored, cases_in(source, artifact), artifact, tolerance)

    return inputs.read_each([inputs.artifact(file)], compared)


def _on_plugin(
    files: Sequence[str], folders: inputs.Folders, plugin: str, options: Mapping[str, PluginOption], how: _How
) -> Iterator[tuple[str, CheckReport | Exception]]:
    from jaxexp.runtime.session import Session

    sources: list[Any] = []
    for file in files:
        several = inputs.stands_for_all(file)
        sources += inputs.in_folder(file, folders, "check") if several else inputs.artifacts(file)
    with progress("checking", len(sources)) as advance:
        for name, found in inputs.read_each(
            sources, lambda source: Session(source.given, plugin=plugin, options=options or None).check(**how)
        ):
            yield name, found
            advance(1, isinstance(found, Exception))


def _elsewhere(
    pythons: Sequence[str], files: Sequence[str], folders: inputs.Folders, options: Sequence[str], at_once: int
) -> Iterator[Outcome]:
    """Checks in other environments, each in a process of its own."""
    if not pythons:
        return
    inside = [] if folders.recursive else ["--no-recursive"]
    inside += [part for pattern in folders.include for part in ("--include", pattern)]
    run = functools.partial(_in_process, arguments=[*inside, *options, "--", *files])
    with progress("environments", len(pythons)) as advance, ThreadPoolExecutor(at_once) as threads:
        for outcomes in threads.map(run, pythons):
            yield from outcomes
            advance(1)


def _options(how: _How) -> list[str]:
    given, within = ["--max-drawn-bytes", str(how["max_drawn_bytes"])], how["tolerance"]
    given += [] if within is None else ["--tolerance", f"{within.relative!r},{within.absolute!r}"]
    return given + [part for module in options.imported() for part in ("--import", module)]


def _bisected(one: Outcome, options: Sequence[str], at_once: int) -> Outcome:
    if one.report is None:
        return one
    python = sys.executable if one.where == HERE else one.where

    def check(flags: str, seconds: float | None) -> CheckReport | None:
        return _in_process(python, [*options, "--", one.file], flags, seconds)[0].report

    return dataclasses.replace(one, blamed=bisected(one.report, check, at_once))


class _Suspect(NamedTuple):
    kind: str
    name: str
    flags: str  # XLA_FLAGS without it


def bisected(report: CheckReport, check: Check, at_once: int) -> tuple[Blamed, ...]:
    """The first of XLA's flags and passes without which each differing case is as recorded, by checks in processes of
    their own, each without one of them.

    Passes are those that changed a module of the function, in the order in which they run. What an artifact says of
    flags is not passed on to XLA: some flags make it write files.
    """
    from jaxexp._api.cases import machine
    from jaxexp._api.cases.report import DIFFERS, FAILED

    wrong = [case for case in report.cases if case.verdict == DIFFERS]
    if not wrong:
        return ()
    flags = machine.flags()
    start = time.monotonic()
    suspects = [*_flags(flags, wrong), *_passes(flags, check)]
    limit = _MOST_TIME + 10 * (time.monotonic() - start)
    found: dict[str, Blamed] = {}
    tried = unusable = 0
    with progress("bisecting", len(suspects)) as advance, ThreadPoolExecutor(at_once) as threads:
        for first in range(0, len(suspects), at_once):
            some = suspects[first : first + at_once]
            for suspect, one in zip(some, threads.map(lambda each: check(each.flags, limit), some), strict=True):
                tried += 1
                usable = {} if one is None else {case.name: case for case in one.cases if case.verdict != FAILED}
                unusable += not any(case.name in usable for case in wrong)
                for case in wrong:
                    now = usable.get(case.name)
                    if case.name not in found and now is not None and now.verdict != DIFFERS:
                        found[case.name] = Blamed(case.name, *suspect[:2], now.summary, tried, unusable)
                advance(1)
            if len(found) == len(wrong):
                break
    return tuple(found.get(case.name) or Blamed(case.name, None, "", "", tried, unusable) for case in wrong)


def _flags(flags: Sequence[str], cases: Iterable[Checked]) -> Iterator[_Suspect]:
    """Those that are set here, and were not where one of the cases was recorded: each alone, and all."""
    from jaxexp._api.cases import machine

    recorded = [machine.split(case.recorded.get("XLA_FLAGS", "")) for case in cases]
    new = [flag for flag in flags if any(flag not in then for then in recorded)]
    for left_out in [*([flag] for flag in new), *([new] if len(new) > 1 else [])]:
        yield _Suspect(FLAG, " ".join(left_out), " ".join(flag for flag in flags if flag not in left_out))


def _passes(flags: Sequence[str], check: Check) -> Iterator[_Suspect]:
    disabled = [name for flag in flags if flag.startswith(f"{_DISABLED}=") for name in flag.split("=", 1)[1].split(",")]
    others = [flag for flag in flags if not flag.startswith((f"{_DISABLED}=", "--xla_dump"))]
    with tempfile.TemporaryDirectory() as folder:
        place = f'"{folder}"' if re.search(r"\s", folder) else folder
        check(" ".join([*flags, f"--xla_dump_to={place}", "--xla_dump_hlo_pass_re=.*"]), None)
        names = _ran(os.listdir(folder))
    for name in names:
        yield _Suspect(PASS, name, " ".join([*others, f"{_DISABLED}={','.join([*disabled, name])}"]))
    level = "--xla_backend_optimization_level=0"
    yield _Suspect(LLVM, level, " ".join([*flags, level]))


def _ran(files: Iterable[str]) -> list[str]:
    """The passes that changed a module, in the order in which they ran, from the names of the files that XLA wrote."""
    found = [match for file in files if (match := _DUMPED.search(file))]
    found.sort(key=lambda match: (int(match[1]), match.string))
    return [name for name in dict.fromkeys(match["after"] for match in found) if name != _START]


def _in_process(
    python: str, arguments: Sequence[str], xla_flags: str | None = None, seconds: float | None = None
) -> list[Outcome]:
    # Nothing is imported from the current folder, unless --import asks for that.
    safe = () if options.imported() else ("-P",)
    command = [python, *safe, "-m", "jaxexp", "check", "--json", *arguments]
    environment = None if xla_flags is None else {**os.environ, "XLA_FLAGS": xla_flags}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return [Outcome("", python, None, f"jaxexp check did not end within {seconds:.0f} s", complaints.FAILED)]
    except OSError as error:
        raise click.UsageError(f"--python {python}: {error.strerror}") from error
    try:
        return [Outcome.from_json(one, python) for one in json.loads(done.stdout)]
    except (ValueError, LookupError, TypeError, ExportError):
        said = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["nothing"]
        message = f"jaxexp check ended with status {done.returncode}, and said {cut(said[-1])}"
        if done.returncode == complaints.MISUSED or "No module named jaxexp" in done.stderr:
            message += ": install this release of jaxexp there"
        return [Outcome("", python, None, message, complaints.FAILED)]


def _add(page: Page, one: Outcome, *, names_environments: bool) -> None:
    if one.report is None:  # which is said on stderr
        return
    first, *rest = one.report.lines()
    about = first.removeprefix(f"{one.report.name}: ")  # the file says more than the name of the function
    page.line(f"{one.file}{f' in {one.where}' if names_environments else ''}: {about}")
    for line in (*rest, *(f"           {blamed}" for blamed in one.blamed)):
        page.line(line)


def _add_totals(page: Page, found: Sequence[Outcome], folders: inputs.Folders) -> None:
    """A line for each environment in which several artifacts were checked."""
    verdicts: dict[str, list[str]] = {}
    for one in found:
        if one.file:  # otherwise the process failed
            verdicts.setdefault(one.where, []).append(one.verdict)
    several = {where: those for where, those in verdicts.items() if len(those) > 1}
    if several:
        page.blank()
    for where, those in several.items():
        page.totals(those, folders.said(), f" in {where}" if len(verdicts) > 1 else "")


def _add_table(page: Page, found: Sequence[Outcome], chosen: Sequence[Outcome]) -> None:
    """A row for each chosen artifact, and a column for each environment."""
    from jaxexp._api.cases.report import in_short

    environments = dict.fromkeys((one.where for one in found), "nothing was checked")
    for one in reversed(found):
        if one.report is not None:
            environments[one.where] = in_short(one.report.checked)
    for number, (where, checked) in enumerate(environments.items(), start=1):
        page.line(f"{number}  {where}: {checked}")
    page.blank()
    verdicts = {(one.file, one.where): one.verdict for one in found}
    names = dict.fromkeys(one.file for one in chosen if one.file)
    rows = [[name, *(verdicts.get((name, where), _ERROR) for where in environments)] for name in names]
    page.table([Column(head) for head in ("artifact", *map(str, range(1, len(environments) + 1)))], rows)


def _junit(found: Iterable[Outcome]) -> str:
    """A report in the form of JUnit, which CI shows: artifacts in environments are suites, and their cases tests."""
    from jaxexp._api.cases.report import DIFFERS, FAILED, NONE

    root = ElementTree.Element("testsuites", name="jaxexp check")
    for one in found:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(f"{one.file} ({one.where})"))
        if one.report is None:
            _test(suite, one.file, "load", "error", one.error)
        elif one.report.verdict == NONE:
            _test(suite, one.file, "cases", "skipped", "no cases")
        for case in () if one.report is None else one.report.cases:
            kind = {FAILED: "error", DIFFERS: "failure"}.get(case.verdict, "")
            said = [str(case), *case.lines(), *(str(blamed) for blamed in one.blamed if blamed.case == case.name)]
            _test(suite, one.file, case.name, kind, "\n".join(said))
        suite.set("tests", str(len(suite)))
        for kind in ("failure", "error", "skipped"):
            count = sum(test.find(kind) is not None for test in suite)
            suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(count))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _test(suite: ElementTree.Element, file: str, name: str, kind: str, said: str) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=_clean(file), name=_clean(name))
    if kind:
        lines = list(map(_clean, said.split("\n")))
        ElementTree.SubElement(test, kind, message=lines[0]).text = "\n".join(lines)


def _clean(said: str) -> str:
    """Text that XML can hold, and whoever reads the results of CI may see."""
    return shown(without_secrets(said))
