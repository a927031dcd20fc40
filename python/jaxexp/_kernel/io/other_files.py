"""Files of other programs that people pass by mistake, known by their first bytes."""

from __future__ import annotations

import codecs

_NUMPY, ZIP, _PICKLE, _HDF5 = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06"), (b"\x80\x02", b"\x80\x04"), b"\x89HDF"
EXECUTABLES = b"JAXEXPEX"
_MLIR, _MLIR_TEXT = b"ML\xefR", (b"module", b"func.func", b"#loc")
# After the root offset of an artifact with a trailer.
MARK, MARK_AT = b"jaxexp\x00\x01", slice(4, 12)
HEAD = 64  # bytes that are enough to say what a file is
_OF_OTHERS = "other libraries keep weights or objects in such files, without a program for JAX"


def is_tensors(head: bytes) -> bool:
    """Whether a file is a safetensors file, by its first 9 bytes: the length of its header, then the header's text."""
    return head[4:8] == bytes(4) and head[8:9] == b"{"


ARTIFACT, ARCHIVE, CODE = "an artifact", "an archive", "a file of executables"
WEIGHTS, INDEX, SIGNATURE = "a file of weights", "an index of weights", "a signature"
ARRAY, ARRAYS, OTHER_ZIP = "a .npy file", "a .npz file", "a ZIP file of another program"
LONG_HEAD = 1 << 10  # bytes that also have the name of the first member of a ZIP file


def kind_of_arrays(path: str) -> str:
    """What a file becomes to which arrays are written, by its name."""
    return ARRAY if path.endswith(".npy") else ARRAYS


def kind_of_ours(head: bytes) -> str:
    """What a file is that people cannot do without, by its first `HEAD` or `LONG_HEAD` bytes; empty for any other one.

    A ZIP file counts as an archive, unless it is seen to have arrays.
    """
    if head[4:8] == b"jaxe":
        return ARTIFACT
    if head[:4] in ZIP:
        return ARRAYS if _first_member(head).endswith(b".npy") else ARCHIVE
    if head.startswith(EXECUTABLES):
        return CODE
    if head.startswith(_NUMPY):
        return ARRAY
    if is_tensors(head):
        return WEIGHTS
    head = b"".join(head.split())  # of JSON
    if head.startswith(b'{"mediaType":"application/vnd.dev.sigstore.bundle'):
        return SIGNATURE
    return INDEX if head.startswith(b'{"metadata":{"total_') else ""


def instead_of_weights(head: bytes) -> str:
    """What a file is in place of weights, from the comma on; empty if its first 8 bytes do not say."""
    if head.startswith(_NUMPY):
        return (
            ", which looks like NumPy's: numpy.save and equinox.tree_serialise_leaves write such files. Read it with "
            "numpy.load or equinox.tree_deserialise_leaves, and pass the arrays or the module"
        )
    if head[:4] in ZIP:
        return (
            ", which looks like a ZIP file: an archive of jaxexp, or a file of numpy.savez or torch.save. Read it with "
            "the library that wrote it, and pass the arrays by their names"
        )
    if _is_pickle_or_hdf5(head):
        return (
            ", which looks like a pickle or HDF5. Read it with the library that wrote it, and pass the arrays by their "
            "names"
        )
    if head[4:8] == b"jaxe":
        return ", which looks like an artifact. Pass its file of weights, or load(path).weights"
    return ""


def instead_of_archive(head: bytes) -> str:
    """What a file is in place of an archive, from its first `HEAD` bytes; empty if they do not say."""
    if known := _known(head):
        return known
    if head[4:8] == b"jaxe":
        return "an artifact, which is one function: 'jaxexp inspect' shows it, and 'jaxexp pack' makes archives"
    if _is_text(head):
        return "what looks like text, as servers send it where they refuse a file: look at it"
    return ""  # the message for a ZIP file depends on what it lacks


def instead_of_artifact(found: str, where: str, head: bytes) -> str:
    """What a message says was found in place of an artifact, besides what the codec says. The place inside the artifact
    is empty if not even its beginning is right; the first `HEAD` bytes, if they are not known.
    """
    if where:  # as far as that, it looks like an artifact
        was_cut = found.endswith("leads out of it")
        return f"{found}: the file was cut or damaged; get another copy of it" if was_cut else found
    if known := _known(head):
        return known
    if head[:4] in ZIP or found.endswith(" a zip archive"):
        return (
            f"{found}: jaxexp.Archive.open opens an archive of artifacts. A file of numpy.savez or torch.save is a ZIP "
            "file, too, and has no program"
        )
    return found


def instead_of_executables(found: str, head: bytes) -> str:
    if head[4:8] == b"jaxe":
        return "an artifact: its compiled code is in a file of its own, which precompile makes"
    if head.startswith(EXECUTABLES):
        return found
    return _known(head) or ("what looks like text" if _is_text(head) else found)


def instead_of_module(head: bytes) -> str:
    """What a file is in place of a module, from its first `HEAD` bytes; empty for text."""
    if _is_text(head):
        return ""
    if head[:4] in ZIP:
        return "a ZIP file, as torch.export and numpy.savez write it"
    return _known(head) or "bytes that are neither text nor MLIR bytecode"


def _known(head: bytes) -> str:
    """What a file is that is neither an artifact nor an archive, and what to do; empty if that is unknown."""
    if head.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "what looks like an HTML page, as servers send it in place of a file: look at it in a browser"
    if head.startswith(_MLIR) or (head.lstrip().startswith(_MLIR_TEXT) and _is_text(head)):
        return "what looks like an MLIR module, such as StableHLO: jaxexp.from_stablehlo makes a function of it"
    if head.startswith(b"version https:/"):
        return "a pointer of Git LFS: 'git lfs pull' gets the file"
    if head.startswith(EXECUTABLES):
        return (
            "a file of executables, which has compiled code but no function: 'jaxexp inspect' shows it, and it is used "
            "with its artifact, by load(path, executables=...) or 'jaxexp run --executables'"
        )
    if is_tensors(head):
        return (
            "what looks like a safetensors file, which has only weights: 'jaxexp inspect' lists them. Load the "
            "artifact that it is beside"
        )
    if head.startswith(_NUMPY):
        return "what looks like NumPy's file of arrays, as equinox.tree_serialise_leaves writes it, without a program"
    for end, writer in ((b".npy", "numpy.savez"), (b"/data.pkl", "torch.save")):
        if _first_member(head).endswith(end):
            return f"what looks like a file of {writer}: {_OF_OTHERS}"
    return f"what looks like a pickle or HDF5: {_OF_OTHERS}" if _is_pickle_or_hdf5(head) else ""


def _is_text(head: bytes) -> bool:
    """Whether a file begins as a text does, as `other_format.cpp` says: with UTF-8, which may be cut inside its last
    character, and without control characters.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and not any((c < " " and c not in "\t\n\v\f\r") or c == "\x7f" for c in text)


def _first_member(head: bytes) -> bytes:
    """The name of the first member of a ZIP file, as far as it is in the first bytes."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")] if head[:4] in ZIP else b""


def _is_pickle_or_hdf5(head: bytes) -> bool:
    return head[:2] in _PICKLE or head.startswith(_HDF5)
