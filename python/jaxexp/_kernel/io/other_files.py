"""Files of other programs that people pass by mistake, known by their first bytes."""

from __future__ import annotations

_NUMPY, _ZIP, _PICKLE, _HDF5 = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06"), (b"\x80\x02", b"\x80\x04"), b"\x89HDF"
EXECUTABLES = b"JAXEXPEX"
_OF_OTHERS = "other libraries keep weights or objects in such files, without a program for JAX"


def instead_of_weights(head: bytes) -> str:
    """What a file is in place of weights, from the comma on; empty if its first 8 bytes do not say."""
    if head.startswith(_NUMPY):
        return (
            ", which looks like NumPy's: numpy.save and equinox.tree_serialise_leaves write such files. Read it with "
            "numpy.load or equinox.tree_deserialise_leaves, and pass the arrays or the module"
        )
    if head[:4] in _ZIP:
        return (
            ", which looks like a ZIP file: an archive of jaxexp, or what numpy.savez or torch.save write. Read it "
            "with what wrote it, and pass the arrays by their names"
        )
    if _is_pickle_or_hdf5(head):
        return ", which looks like a pickle or HDF5. Read it with what wrote it, and pass the arrays by their names"
    if head[4:8] == b"jaxe":
        return ", which looks like an artifact. Pass its file of weights, or the weights of what load returns"
    return ""


def instead_of_archive(head: bytes) -> str:
    """What a file is in place of an archive; empty if its first bytes do not say."""
    if known := _of_servers(head):
        return known
    if head[:8].strip() and all(32 <= c < 127 or 9 <= c <= 13 or 128 <= c <= 244 for c in head[:8]):
        return "what looks like text, as servers send it where they refuse a file: look at it"
    if known := _arrays(head):
        return f"what looks like {known}"
    if _is_pickle_or_hdf5(head):
        return f"what looks like a pickle or HDF5: {_OF_OTHERS}"
    return ""  # the message for a ZIP file depends on what it lacks


def instead_of_artifact(head: bytes) -> str:
    """What a file is in place of an artifact, for the end of a message."""
    if known := _of_servers(head):
        return f": this is {known}"
    if known := _arrays(head):
        return f": this looks like {known}"
    if head.startswith(EXECUTABLES):
        return ": pass it with the artifact, load(path, executables=...)"
    if head[:4] in _ZIP:
        return (
            ": jaxexp.Archive.open opens an archive of artifacts. What numpy.savez or torch.save write is a ZIP file, "
            "too, and has no program"
        )
    return f": {_OF_OTHERS}" if _is_pickle_or_hdf5(head) else ""


def _of_servers(head: bytes) -> str:
    start = head.lstrip()[:14].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "what looks like an HTML page, as servers send it in place of a file: look at it in a browser"
    if head.startswith(b"version https:/"):
        return "a pointer of Git LFS: 'git lfs pull' gets the file"
    return ""


def _arrays(head: bytes) -> str:
    if head[4:8] == bytes(4) and head[8:9] == b"{":
        return "a safetensors file, which has only weights. Load the artifact that it is beside"
    if head.startswith(_NUMPY):
        return "NumPy's file of arrays, as equinox.tree_serialise_leaves writes it, without a program"
    return ""


def _is_pickle_or_hdf5(head: bytes) -> bool:
    return head[:2] in _PICKLE or head.startswith(_HDF5)
