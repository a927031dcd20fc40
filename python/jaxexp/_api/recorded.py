"""`Recorded`: what an `Exported` does with its cases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jaxexp._errors import ExportError
from jaxexp._kernel.exported import Function
from jaxexp._kernel.function import data

if TYPE_CHECKING:
    from jaxexp._api.cases.report import CheckReport
    from jaxexp._kernel.artifact.cases import Case
    from jaxexp._kernel.write.options import Writing


class Recorded(Function):
    """A function with the calls of it that were recorded."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """The calls that were recorded with the function, as far as they fit its signature; empty if there are none.

        They go along with `specialize` if their shapes fit, with `dataclasses.replace`, and into new artifacts;
        `serialize` leaves out those with arrays in files. Other weights give other results: so `bind`, `with_weights`,
        and JAX's functions on a `BoundExported` drop them.
        """
        from jaxexp._api.cases.recording import cases_of

        return cases_of(self)

    def check(self, *, tolerance: Any = None, max_drawn_bytes: int = 1 << 32) -> CheckReport:
        """Makes the recorded calls again, and compares the results with the recorded ones.

        Args:
            tolerance: how far numbers may be from the recorded ones, for all results: a relative tolerance as a number,
                or a `Tolerance`; 0 for equal numbers. The default is what was given or measured when the case was
                recorded, or else the default of the dtype: integers have to be equal, and a float may differ by 64
                units in the last place of the largest number of its result.
            max_drawn_bytes: how many bytes the random arguments of a case may take.

        Returns:
            A report of all cases, also of those that cannot be called here; `CheckReport.ok` says whether all results
            are as recorded. Of a case that differs, it names the first operation that does, if a trace was recorded.

        Raises:
            ExportError: the tolerance is negative, or not finite. It is also a TypeError if it is no number.

        Example:
            >>> print(jaxexp.load("model.jaxexp").check())
        """
        from jaxexp._api.cases.recording import check

        return check(self, tolerance, max_drawn_bytes)

    def _check_padding(self, *how: Any) -> None:
        from jaxexp._api.cases.padding import check

        check(self, *how)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        vjp_order: int = 0,
        compatibility: str | None = None,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
        locations: str = "full",
        sizes: Iterable[Mapping[str, int]] | None = None,
        pad: str | Iterable[str] | None = None,
        cases: Iterable[Any] = (),
    ) -> None:
        """Writes what `serialize` returns to a file, without a second copy of the module in memory.

        The bytes go to a temporary file in the same folder. When it is complete, it replaces `path`, so other programs
        see the old file or the new one.

        Args:
            path: the file; an existing one is replaced.
            vjp_order, compatibility, trailer, metadata, strict, locations, sizes, pad: as in `serialize`.
            cases: calls to make now, whose arguments and results are saved with the function, for `check` to make
                again: each a tuple of the positional arguments; or a dict with ``args``, ``kwargs``, a ``name``, a
                ``tolerance`` (as in `check`, for all results, or a dict of some by their paths, as in
                ``{"result['loss']": 1e-3}``; ``"dtype"``, the default, is that of the dtype; ``"measured"`` measures
                now what rounding does to a float, which takes several calls), and ``vjp_order`` for a call of the VJP
                with the ``cotangents`` of the results, in a list; by default they are random. With ``"trace": True``,
                fingerprints of what each operation makes are saved, too, so that `check` can name the first operation
                that differs; this compiles a second program. An array may be a `Drawn`. If arrays take more than 64
                KiB, the largest ones go to ``model.cases.safetensors`` beside ``model.jaxexp``.

        Raises:
            ExportError: as in `serialize`; or the arguments of a case do not fit, the function has effects, or it
                cannot run here; or ``trailer=False`` leaves no place for cases; or their file would replace one that
                another program wrote, or one with weights, or with cases of another artifact in the folder.
            OSError: a file cannot be written; an existing file is unchanged.
        """
        from jaxexp._kernel.write.serialize import save

        cases = list(cases)
        how = self._writing(vjp_order, compatibility, trailer, metadata, strict, locations, sizes, pad, cases)
        save_with_cases(self, path, how, cases, lambda how: save(self, path, how))


def save_with_cases(
    exported: Any,
    path: str | os.PathLike[str],
    how: Writing,
    given: Iterable[Any],
    save: Callable[[Writing], None],
) -> None:
    """Calls `save` with the cases of a function, and with new ones for what was given."""
    if (kept := cases_to_write(exported, how, given)) is None:
        save(how)
        return
    from jaxexp._api.cases import files

    files.save(path, kept, lambda placed: save(how._replace(cases=placed, case_files=True)))


def cases_to_write(exported: Any, how: Writing, given: Iterable[Any]) -> list[Case] | None:
    """The cases of a function for a new artifact, and new ones for what was given; None if there are none.

    Raises:
        ExportError: as in `Exported.save`.
    """
    given = list(given)
    if not how.trailer or (not given and data.cases_of(exported.unbound) is None):
        if given:
            raise ExportError(
                f"{exported.fun_name} cannot be saved with cases and trailer=False: cases are in the trailer"
            )
        return None
    from jaxexp._api.cases import recording

    cases = recording.recorded(exported, given)
    kept = [case for case in cases if case.vjp_order <= how.vjp_order]
    for case in cases[len(cases) - len(given) :]:
        if case not in kept:
            raise ExportError(
                f"{exported.fun_name} cannot be saved with vjp_order={how.vjp_order!r}: case {case.name!r} calls the "
                f"VJP of order {case.vjp_order}"
            )
    return kept
