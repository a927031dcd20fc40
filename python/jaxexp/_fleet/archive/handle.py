"""`Handle`: a member of an archive, before it is loaded."""

from __future__ import annotations

import dataclasses
import operator
import os
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.artifact.words import bytes_in_words, counted, cut, derivatives, lowered_for
from jaxexp._kernel.io.files import named_in_errors
from jaxexp._public import public, public_dir

from .load_all import load_one
from .member_weights import files_of_artifact, of_artifact
from .opened import Opened
from .summary import Summary, of_member

if TYPE_CHECKING:
    from jaxexp._api.exported import Exported
    from jaxexp._kernel.artifact.inspection import Inspection
    from jaxexp._policy.policy import Policy
    from jaxexp._weights.files.reading import Tensors


@public
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Handle:
    """A member of an archive. Its artifact is read when you ask for it.

    Attributes:
        name: its name in the archive.
    """

    _opened: Opened
    _number: int
    name: str

    @property
    def label(self) -> str:
        """The archive and the name, as in ``"fleet.zip::resnet/b8"``: `load` takes it, and errors show it."""
        return self._opened.label(self.name)

    @property
    def summary(self) -> Summary:
        """What the index says about the function; the artifact is not read."""
        return of_member(self._member)

    @property
    def size(self) -> int:
        """The size of the artifact in bytes."""
        return self._member.size

    @property
    def digest(self) -> str:
        """The digest of the artifact as a hexadecimal number (XXH3, 128 bits). Equal artifacts have equal digests."""
        return self._member.digest.hex()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that was passed to `ArchiveWriter.add`, or else that of the artifact."""
        with self._placed():
            return self._opened.metadata(self._number)

    def own_metadata(self) -> dict[str, Any] | None:
        """The metadata, if the artifact does not have it."""
        with self._placed():
            return self._opened.own_metadata(self._number)

    @property
    def shares_modules(self) -> bool:
        """Whether its modules are stored with another member. Then `unzip` does not extract a complete artifact."""
        return self._member.place.apart

    def load(
        self,
        *,
        policy: Policy | None = None,
        verify: bool = False,
        executables: str | os.PathLike[str] | None = None,
    ) -> Exported:
        """The function, as from `jaxexp.load`. In a local file, a large module is read when the function is called.

        If its weights are in the archive, it is a `BoundExported`. They are mapped, or fetched from a URL, when they
        are first used; if the archive was opened with `stable`, they are read.

        Without a policy or executables, the same object is returned again as long as it is in use, with the code that
        was compiled for it.

        Args:
            policy: what the artifact may contain, as in `deserialize`.
            verify: as in `jaxexp.load`.
            executables: as in `jaxexp.load`: a file that `Archive.precompile` or `Exported.precompile` wrote. If the
                archive was opened with `signed_by`, the file has to be signed, too.

        Raises:
            DeserializationError: the artifact is damaged. The error names the archive and the member.
            PolicyError: the artifact contains something that the policy does not allow.
            SignatureError: the file of executables is not signed, and the archive was opened with `signed_by`.
            ExportError: both `policy` and `executables` are given.
            OSError: a file cannot be read.
        """
        if executables is not None:
            from jaxexp._api.load import give_executables, refuse_both

            refuse_both(self.label, policy, executables)
            signed = self._opened.signed
            code = None if signed is None else signed.opened(executables, self._opened.source.name)
            exported = load_one(self._opened, self.name)
            give_executables(exported.unbound, executables, code)
        elif policy is not None:
            exported = load_one(self._opened, self.name, policy)
        elif (known := self._opened.loaded.get(self._number)) is not None:
            exported = known
        else:
            exported = self._opened.loaded[self._number] = load_one(self._opened, self.name)
        if verify:
            from jaxexp._kernel.read.decode import verify_modules

            with self._placed():
                verify_modules(exported)
            if (stored := self.stored_files()) is not None:
                stored.check_digests()
        return exported

    def read(self) -> bytes:
        """The bytes of the artifact, for any `jax.export`.

        They are not verified.

        Raises:
            DeserializationError: its modules are stored with another member, but are not found there.
        """
        with self._placed():
            return self._opened.artifact_bytes(self._number)

    def stored_weights(self) -> Tensors | None:
        """The weights of the function, if they are in the archive; else None. Without JAX.

        Raises:
            DeserializationError: as in `read`.
        """
        with self._placed():
            artifact = _native.Artifact(*self._opened.parts(self._number))
            return of_artifact(self._opened, self._opened.label(self.name), artifact)

    def stored_files(self) -> Tensors | None:
        """The weights and the arrays of cases that are in the archive, for whoever moves them; else None.

        Raises:
            DeserializationError: as in `read`.
        """
        with self._placed():
            artifact = _native.Artifact(*self._opened.parts(self._number))
            return files_of_artifact(self._opened, self._opened.label(self.name), artifact)

    def inspect(self, *, check_modules: bool = False) -> Inspection:
        """Shows what the artifact says about itself, as `jaxexp.inspect` does."""
        from jaxexp._kernel.artifact.inspect import described  # slow to import

        with self._placed():
            image, modules = self._opened.parts(self._number)
            found = described(image, check_modules, modules)
        own = self.own_metadata()
        return found if own is None else dataclasses.replace(found, metadata=own or None)

    @property
    def _member(self) -> _native.Member:
        with self._placed():
            return self._opened.index.member(self._number)

    def _placed(self) -> named_in_errors:
        return self._opened.placed(self.name)

    def __repr__(self) -> str:
        place = f"{self.name!r} in {self._opened.source.name!r}"
        try:
            return f"Handle({place}: {cut(str(self.summary))}, {bytes_in_words(self.size)})"
        except (DeserializationError, OSError):  # the index is read when it is needed
            return f"Handle({place})"

    def _repr_html_(self) -> str:
        from jaxexp._view.card import rows_card

        summary = self.summary
        rows = {
            "function": summary.fun_name,
            "platforms": lowered_for(summary.platforms, summary.nr_devices),
            "written by": f"JAX {summary.jax_version or summary.writer}",
            "size": bytes_in_words(self.size),
            "derivatives": derivatives(summary.vjp_order),
            **({"weights": f"{summary.weight_count:,}"} if summary.weight_count else {}),
            counted(summary.argument_count, "argument"): ", ".join(summary.arguments),
            counted(summary.result_count, "result"): ", ".join(summary.results),
            "digest": self.digest,
        }
        return rows_card(self.name, rows.items())

    __dir__ = public_dir

    def __copy__(self) -> Handle:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self._opened, self.name)  # unpickling makes an archive of `_opened`: see Opened
