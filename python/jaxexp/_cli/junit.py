"""Reports of checks in the form of JUnit, which CI shows."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxexp._errors import shown
from jaxexp._kernel.artifact.words import without_secrets

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._cli.bisecting import Blamed


def text(found: Iterable[tuple[str, str, CheckReport | None, str, Iterable[Blamed]]]) -> str:
    """The report on artifacts: each with the environment, what was found there, the error if it was not loaded, and
    what makes its cases differ.

    Each artifact in an environment is a suite, and each case a test.
    """
    from jaxexp._api.cases.report import DIFFERS, FAILED, NONE

    root = ElementTree.Element("testsuites", name="jaxexp check")
    for file, where, report, error, blamed in found:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(f"{file} ({where})"))
        if report is None:
            _test(suite, file, "load", "error", error)
        elif report.verdict == NONE:
            _test(suite, file, "cases", "skipped", "no cases")
        for case in () if report is None else report.cases:
            kind = {FAILED: "error", DIFFERS: "failure"}.get(case.verdict, "")
            said = [str(case), *case.lines(), *(str(one) for one in blamed if one.case == case.name)]
            _test(suite, file, case.name, kind, "\n".join(said))
        suite.set("tests", str(len(suite)))
        for kind in ("failure", "error", "skipped"):
            count = sum(test.find(kind) is not None for test in suite)
            suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(count))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _test(suite: ElementTree.Element, file: str, name: str, kind: str, said: str) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=_clean(file), name=_clean(name))
    if kind:
        ElementTree.SubElement(test, kind, message=_clean(said.partition("\n")[0])).text = "\n".join(
            map(_clean, said.split("\n"))
        )


def _clean(said: str) -> str:
    """Text that XML can hold, and whoever reads the results of CI may see."""
    return shown(without_secrets(said))
