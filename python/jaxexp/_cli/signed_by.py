"""The options that say who has to have signed a file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from . import complaints

if TYPE_CHECKING:
    from jaxexp._signing.signed_by import SignedBy


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds these options. They make one argument, `by`."""

    @click.option(
        "--signed-by",
        "pem",
        metavar="PEM",
        multiple=True,
        type=click.Path(),
        help="Refuse what the owner of this key has not signed: a public key, or certificates that are trusted.",
    )
    @click.option("--identity", metavar="NAME", help="Refuse what this identity has not signed with Sigstore.")
    @click.option("--issuer", metavar="URL", help="With --identity: the identity provider that confirms it.")
    @click.option(
        "--trust-config",
        metavar="JSON",
        type=click.Path(),
        help="With --identity: the trust configuration of a Sigstore of your own.",
    )
    @click.option("--staging", is_flag=True, help="With --identity: trust Sigstore's staging instance.")
    @click.option("--signature", metavar="SIG", type=click.Path(), help="The signature of all files, not FILE.sig.")
    @functools.wraps(command)
    def with_signer(
        *args: Any,
        pem: tuple[str, ...],
        identity: str | None,
        issuer: str | None,
        trust_config: str | None,
        staging: bool,
        signature: str | None,
        **kwargs: Any,
    ) -> Any:
        sigstore = {"identity": identity, "issuer": issuer, "trust_config": trust_config, "staging": staging}
        if pem or any(sigstore.values()):
            by = _signed_by(pem, sigstore, signature)
        elif signature is not None:
            raise click.UsageError("--signature needs --signed-by or --identity, which say whose it has to be")
        else:
            by = None
        return command(*args, by=by, **kwargs)

    return with_signer


def _signed_by(pem: tuple[str, ...], sigstore: dict[str, Any], signature: str | None) -> SignedBy:
    from jaxexp._signing.signed_by import SignedBy

    with complaints.misused("--signed-by " if pem else "--identity "):
        if any(map(_has_certificates, pem)):
            return SignedBy(certificates=pem, signature=signature, **sigstore)
        if len(pem) > 1:
            raise click.UsageError("--signed-by names one public key, or several files of certificates")
        return SignedBy(public_key=pem[0] if pem else None, signature=signature, **sigstore)


def _has_certificates(path: str) -> bool:
    with open(path, "rb") as file:
        return b"-----BEGIN CERTIFICATE-----" in file.read()
