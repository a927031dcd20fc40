"""`jaxexp unpack`: writes members of an archive as files."""

from __future__ import annotations

import os
from typing import Any

from jaxexp._cli import completing, inputs, options, outputs
from jaxexp._cli.options import argument, option
from jaxexp._cli.page import progress, say
from jaxexp._fleet.passes.migrate_many import inside, make_folder
from jaxexp._kernel.artifact.words import counted


@options.command("Write members of an archive as files.", options.HEADERS)
def command(
    archive: options.File = argument("ARCHIVE"),
    pattern: str | None = argument("[GLOB]", shell_complete=completing.of_archive),
    directory: options.File = option("-d, --directory", "The folder for the files.", default=".", show_default=True),
    force: bool = option("--force", "Replace files that exist."),
) -> None:
    """Write members of an archive as files, each a plain artifact.

    Each artifact is verified first. Its file appears completely or not at all. Its weights and cases go to files beside
    it; artifacts with the same weights share them. Nothing is written outside of the directory. JAX is not imported.

    Example:
      jaxexp unpack fleet.zip -d models
      jaxexp unpack fleet.zip 'resnet/*' -d models --force
    """
    with inputs.part(archive, pattern) as opened:
        targets = {name: inside(directory, name, ".jaxexp") for name in opened}
        sources = {name: inputs.Source(f"{archive}{inputs.MEMBER}{name}", handle=opened[name]) for name in opened}
        refuse = (lambda path: None) if force else outputs.refuse_existing
        for target in targets.values():  # before anything is written
            refuse(target)
        unpacking: Any = None
        planned: dict[str, list[tuple[str, int]]] = {}
        for name, source in sources.items():
            with source.named():
                if (weights := opened[name].stored_files()) is None:
                    continue
                if unpacking is None:
                    from jaxexp._weights.files.saving import Unpacking  # few archives need it

                    unpacking = Unpacking()
                planned[name] = unpacking.plan(os.path.dirname(targets[name]), weights, refuse)
        total = 0
        written = outputs.Several()
        with progress("unpacking", len(targets)) as advance:
            for name, target in targets.items():
                data = inputs.checked(sources[name]).buffer
                make_folder(directory, target)
                if name in planned:  # first, so that no program lacks its weights
                    for path, _ in planned[name]:
                        make_folder(directory, path)
                        written.check(path, "weights")
                    with sources[name].named():
                        total += unpacking.write(planned[name], opened[name].stored_files())
                    for path, _ in planned[name]:
                        written.add(path, "weights")
                written.check(target, sources[name])
                outputs.write(target, data, force=force)
                written.add(target, sources[name])
                total += memoryview(data).nbytes
                advance(1)
    say(f"{directory}: {counted(len(targets), 'artifact')} unpacked, {total:,} bytes")
