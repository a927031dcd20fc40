"""`jaxexp sign`: signs artifacts, archives and files of executables."""

from __future__ import annotations

import os

import click

from jaxexp._cli import inputs, options
from jaxexp._cli.options import option
from jaxexp._cli.page import say
from jaxexp._kernel.artifact.words import counted, listed


@options.command("Sign artifacts.")
def command(
    paths: tuple[str, ...] = options.FILES,
    folders: inputs.Folders = options.FOLDERS,
    key: options.File | None = option("--key PEM", "The private key of an elliptic curve."),
    password_from: options.File | None = option(
        "--password-from FILE", "A file with the password of the key; - is stdin."
    ),
    certificate: options.File | None = option("--certificate PEM", "The certificate of the key."),
    chain: tuple[options.File, ...] = option(
        "--chain PEM", "Certificates between --certificate and a trusted one. May be repeated."
    ),
    sigstore: bool = option("--sigstore", "Sign with an identity that Sigstore confirms in a browser."),
    ambient: bool = option("--ambient", "With --sigstore, use the identity of this process in CI."),
    output: options.File | None = option(
        "-o, --output SIG",
        "Write one signature for all files, in their folder or one above. By default, each file gets FILE.sig.",
    ),
) -> int:
    """Sign artifacts with their weights, archives, and files of executables, so that others can check their origin.

    FILE is one of these files, or a folder, for all artifacts and archives in it. Each file is verified first. A
    signature has the OpenSSF Model Signing format: 'jaxexp verify --signed-by' and 'model_signing verify' check it. An
    old signature is replaced. JAX is not imported.

    Example:
      jaxexp sign model.jaxexp fleet.zip --key release.pem
      jaxexp sign model.jaxexp model.exe --key release.pem -o release.sig
      jaxexp sign models/ --key own.pem --certificate own.crt --chain ca.crt
    """
    from jaxexp._fleet.places.sign import signed, signer

    if ambient and not sigstore:
        raise click.UsageError("--ambient needs --sigstore")
    if sigstore == (key is not None):
        raise click.UsageError("pass either --key or --sigstore")
    if certificate is None and chain:
        raise click.UsageError("--chain needs --certificate")
    identity = {"use_ambient_credentials": ambient} if sigstore else None
    password = None
    if password_from is not None:
        with click.open_file(password_from, "rb") as file:
            password = file.readline().rstrip(b"\r\n")
    by = signer(key, password, certificate, chain, identity)
    for written, files in signed([file for path in paths for file in folders.files_of(path)], by, output):
        names = listed([os.path.basename(file) for file in files], repr, most=4)
        say(f"{written}: {counted(len(files), 'file')} signed ({names})")
    return 0
