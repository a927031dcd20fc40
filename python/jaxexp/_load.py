"""Reading artifacts: from a buffer, and from a file."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from typing import Any

from ._errors import DeserializationError
from ._exported import Exported, read_exported

# The pages of a large file may be mapped as huge pages, of which metadata and trailer need a few kB. The module,
# between this many bytes at either end, may lie in huge pages: a call reads all of it.
_END = 1 << 18


def deserialize(blob: Any) -> Exported:
    """The function that `Exported.serialize` of jaxexp, or of any `jax.export` since JAX 0.4.22, turned into bytes.

    The whole buffer is verified, then the signature is decoded; the module and the VJPs are read from the buffer when
    they are needed, so a read-only buffer stays in use as long as the function. A writable one (a bytearray) is copied
    first and may be used again at once.

    Verification covers the structure, not the module inside: a loaded function is a program, which may run any custom
    call that is registered in the process. Load what you trust.

    Args:
        blob: an object with a contiguous buffer: bytes, bytearray, memoryview, mmap or an array of bytes. What follows
            the artifact in the buffer is ignored.

    Raises:
        DeserializationError: the bytes are not an artifact that can be read here. It says where, what was expected,
            and what was found.
        ExportError: a function that was registered for a pytree node type refuses what it is given.
        TypeError: `blob` has no buffer.
    """
    return read_exported(blob)


def load(path: str | os.PathLike[str]) -> Exported:
    """The function in a file that `Exported.save` wrote, or that holds what `serialize` returned.

    The file is mapped into memory and read on demand, so a signature is known before a large module is touched.
    `Exported.save` replaces files, which leaves loaded functions alone. Another program that changes the file in place
    changes the function, and one that shortens it may end this process with SIGBUS: pass the bytes to `deserialize`
    where that can happen.

    Args:
        path: the file.

    Raises:
        DeserializationError: as in `deserialize`; it names the file.
        OSError: the file cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise DeserializationError("", "a serialized Exported", "an empty file")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            _in_small_pages(mapped)
        return deserialize(mapped)
    except DeserializationError as error:
        error.file = os.fsdecode(path)
        raise


def _in_small_pages(mapped: mmap.mmap) -> None:
    """Keeps the resident memory of a file whose module nobody has read yet in proportion to its metadata."""
    size = len(mapped)
    if sys.platform == "linux" and size > 2 * _END:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_NOHUGEPAGE, 0, _END)
            last = (size - _END) // mmap.PAGESIZE * mmap.PAGESIZE  # the trailer is there
            mapped.madvise(mmap.MADV_NOHUGEPAGE, last, size - last)
