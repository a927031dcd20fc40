"""Reading artifacts: from a buffer, and from a file."""

from __future__ import annotations

import contextlib
import copyreg
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any

from jaxexp._exported import Exported
from jaxexp._function import data
from jaxexp._io import files
from jaxexp._public import public

from .decode import read
from .policy import Policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The pages of a large file may be mapped as huge pages, of which metadata and trailer need a few kB. The module,
# between this many bytes at either end, may lie in huge pages: a call reads all of it.
_END = 1 << 18


@public
def deserialize(blob: Buffer, *, policy: Policy | None = None) -> Exported:
    """The function that `Exported.serialize` of jaxexp, or of any `jax.export` since JAX 0.4.22, turned into bytes.

    The whole buffer is verified, then the signature is decoded; the module and the VJPs are read from the buffer when
    they are needed, so a read-only buffer stays in use as long as the function. A writable one (a bytearray) is copied
    first and may be used again at once.

    Verification covers the structure, not the module inside: a loaded function is a program, which may run any custom
    call that is registered in the process. Load what you trust, or give a policy, which is checked before the function
    is returned.

    Args:
        blob: an object with a contiguous buffer: bytes, bytearray, memoryview, mmap or an array of bytes. What follows
            the artifact in the buffer is ignored.
        policy: what the artifact may contain; None for anything. It is checked here alone: what is made of the
            function later (its VJPs, `Exported.specialize`) is not checked again, and what it is written to has no
            policy. With one, the buffer must not change while this runs.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here. It says where, what was expected,
            and what was found.
        PolicyError: it contains what the policy does not allow. It says what, where, and which field would allow it.
        ExportError: a function that was registered for a pytree node type refuses what it is given.
        TypeError: `blob` has no buffer.
    """
    if policy is None:
        return read(blob)
    if isinstance(blob, (bytes, bytearray, memoryview)):
        policy.check_size(memoryview(blob).nbytes)
    exported = read(blob)
    policy.check(exported)
    return exported


@public
def load(path: str | os.PathLike[str], *, policy: Policy | None = None) -> Exported:
    """The function in a file that `Exported.save` wrote, or that holds what `serialize` returned.

    The file is mapped into memory and read on demand, so a signature is known before a large module is touched.
    `Exported.save` replaces files, which leaves loaded functions alone. Another program that changes the file in place
    changes the function, and one that shortens it may end this process with SIGBUS: pass the bytes to `deserialize`
    where that can happen. With a policy the file is read as a whole, so that what runs is what was checked.

    Args:
        path: the file.
        policy: what the artifact may contain, as in `deserialize`.

    Raises:
        DeserializationError: as in `deserialize`; it names the file.
        PolicyError: likewise.
        OSError: the file cannot be opened.
    """
    with files.named_in_errors(os.fsdecode(path)):
        if policy is not None:
            return deserialize(files.read(path, policy.check_size), policy=policy)
        mapped = files.mapped(path)
        _in_small_pages(mapped)
        return deserialize(mapped)


def _in_small_pages(mapped: mmap.mmap) -> None:
    """Keeps the resident memory of a file whose module nobody has read yet in proportion to its metadata."""
    size = len(mapped)
    if sys.platform == "linux" and size > 2 * _END:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_NOHUGEPAGE, 0, _END)
            last = (size - _END) // mmap.PAGESIZE * mmap.PAGESIZE  # the trailer is there
            mapped.madvise(mmap.MADV_NOHUGEPAGE, last, size - last)


def _reduce(exported: Exported) -> Any:
    """Loaded functions are pickled as artifacts."""
    if not data.is_loaded(exported):
        return exported.__reduce__()
    orders = sum(1 for _ in data.stored_chain(exported)) - 1
    return deserialize, (bytes(exported.serialize(orders)),)


copyreg.pickle(Exported, _reduce)
