"""The package `model-signing`, imported when it is needed."""

from __future__ import annotations

from typing import Any


def model_signing() -> Any:
    """The package, with its modules for signing, verifying, hashing and manifests.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import model_signing as package
        import model_signing.hashing
        import model_signing.manifest
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:  # the package needs pyopenssl, and its releases up to 1.1.1 do not say so
        raise ImportError("signatures need model-signing: pip install 'jaxexp[sign]'") from error
    return package


def said(error: Exception) -> str:
    """What an error of the package says, in one line. Some have only a type, and some repeat what was signed."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text[:_MOST]}{'...' if len(text) > _MOST else ''}" if text else name


_MOST = 300
