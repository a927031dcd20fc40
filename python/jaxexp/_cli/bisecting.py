"""Which of XLA's flags and passes makes a case differ: checks in processes of their own, each without one of them."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from jaxexp._cli import progress
from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import counted

if TYPE_CHECKING:
    from jaxexp._api.cases.report import Checked, CheckReport

FLAG, PASS, LLVM = "flag", "pass", "LLVM"
_DISABLED = "--xla_disable_hlo_passes"
# XLA writes a file after each pass that changed a module: its number, the pipeline, and the passes before and after.
_DUMPED = re.compile(r"\.(\d{4,})\.[^.]*\.after_(?P<after>[\w-]+)\.before_[^.]+\.txt$")
_START, _MOST_TIME = "pipeline-start", 30.0  # seconds that each process may take beside ten times those of the first

# Checks an artifact in a process with these XLA_FLAGS, for at most so many seconds; None if there is no report.
Check = Callable[[str, float | None], "CheckReport | None"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """What makes a case differ.

    Attributes:
        case: the name of the case.
        kind: `FLAG`: flags in XLA_FLAGS. `PASS`: a pass of XLA. `LLVM`: the optimizations of LLVM. None if the case
            differs without each of them.
        name: the flags or the pass.
        without: how the case goes without them, in words.
        tried: how many checks were made until this one was found.
        unusable: in how many of them the function could not be compiled or called.
    """

    case: str
    kind: str | None
    name: str
    without: str
    tried: int
    unusable: int

    def __str__(self) -> str:
        unusable = f", {self.unusable:,} of them without a result" if self.unusable else ""
        tried = f"{counted(self.tried, 'check')}{unusable}"
        if self.kind is None:
            return shown(f"{self.case} differs also without each flag and each pass of XLA's ({tried})")
        what = {FLAG: "XLA_FLAGS ", PASS: "XLA's pass ", LLVM: "LLVM's optimizations, "}[self.kind] + self.name
        return shown(f"{self.case} without {what}: {self.without} ({tried})")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class _Suspect:
    kind: str
    name: str
    flags: str  # XLA_FLAGS without it


def bisected(report: CheckReport, check: Check, at_once: int) -> tuple[Blamed, ...]:
    """The first flag or pass without which each differing case is as recorded.

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
    with progress.bar("bisecting", len(suspects)) as advance, ThreadPoolExecutor(at_once) as threads:
        for first in range(0, len(suspects), at_once):
            some = suspects[first : first + at_once]
            for suspect, one in zip(some, threads.map(lambda each: check(each.flags, limit), some), strict=True):
                tried += 1
                usable = {} if one is None else {case.name: case for case in one.cases if case.verdict != FAILED}
                unusable += not any(case.name in usable for case in wrong)
                for case in wrong:
                    now = usable.get(case.name)
                    if case.name not in found and now is not None and now.verdict != DIFFERS:
                        found[case.name] = Blamed(
                            case=case.name,
                            kind=suspect.kind,
                            name=suspect.name,
                            without=now.summary,
                            tried=tried,
                            unusable=unusable,
                        )
                advance(1)
            if len(found) == len(wrong):
                break
    none = functools.partial(Blamed, kind=None, name="", without="", tried=tried, unusable=unusable)
    return tuple(found.get(case.name) or none(case=case.name) for case in wrong)


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
