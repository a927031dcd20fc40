"""`jaxexp sign`: signs artifacts, archives and files of executables."""

from __future__ import annotations

import os
import sys

import click

from jaxexp._cli import completing, inputs, options
from jaxexp._cli.page import say
from jaxexp._kernel.artifact.words import counted, listed

_EXAMPLE = """\b
Example:
  jaxexp sign model.jaxexp fleet.zip --key release.pem
  jaxexp sign model.jaxexp model.exe --key release.pem -o release.sig
  jaxexp sign models/ --key own.pem --certificate own.crt --chain ca.crt"""


@click.command(epilog=_EXAMPLE, short_help="Sign artifacts.")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=completing.Artifact())
@options.folders
@click.option("--key", metavar="PEM", type=click.Path(), help="The private key of an elliptic curve.")
@click.option(
    "--password-from", metavar="FILE", type=click.Path(), help="A file with the password of the key; - is stdin."
)
@click.option("--certificate", metavar="PEM", type=click.Path(), help="The certificate of the key.")
@click.option(
    "--chain",
    metavar="PEM",
    multiple=True,
    type=click.Path(),
    help="Certificates between --certificate and a trusted one. May be repeated.",
)
@click.option("--sigstore", is_flag=True, help="Sign with an identity that Sigstore confirms in a browser.")
@click.option("--ambient", is_flag=True, help="With --sigstore, use the identity of this process in CI.")
@click.option(
    "-o",
    "--output",
    metavar="SIG",
    type=click.Path(),
    help="Write one signature for all files, in their folder or one above. By default, each file gets FILE.sig.",
)
def command(
    paths: tuple[str, ...],
    folders: inputs.Folders,
    key: str | None,
    password_from: str | None,
    certificate: str | None,
    chain: tuple[str, ...],
    sigstore: bool,
    ambient: bool,
    output: str | None,
) -> int:
    """Sign artifacts with their weights, archives, and files of executables, so that others can check their origin.

    FILE is one of these files, or a folder, for all artifacts and archives in it. Each file is verified first. A
    signature has the OpenSSF Model Signing format: 'jaxexp verify --signed-by' and 'model_signing verify' check it. An
    old signature is replaced. JAX is not imported.
    """
    from jaxexp._fleet.places.sign import signed, signer

    if ambient and not sigstore:
        raise click.UsageError("--ambient needs --sigstore")
    if sigstore == (key is not None):
        raise click.UsageError("pass either --key or --sigstore")
    if certificate is None and chain:
        raise click.UsageError("--chain needs --certificate")
    options = {"use_ambient_credentials": ambient} if sigstore else None
    by = signer(key, _password(password_from), certificate, chain, options)
    for written, files in signed([file for path in paths for file in folders.files_of(path)], by, output):
        names = listed([os.path.basename(file) for file in files], repr, most=4)
        say(f"{written}: {counted(len(files), 'file')} signed ({names})")
    return 0


def _password(path: str | None) -> bytes | None:
    """The first line of a file."""
    if path is None:
        return None
    if path == "-":
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    with open(path, "rb") as file:
        return file.readline().rstrip(b"\r\n")
