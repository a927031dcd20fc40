"""Draws docs/_static/cli.svg, what commands print on a terminal: ``python tests/tools/picture_cli.py``.

The commands run, in colour, in the setting of `record_cli`: beside the artifacts of docs/guide/cli.md and a folder with
golden artifacts of old releases. A terminal is dark on light pages, too.
"""

from __future__ import annotations

import html
import io
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.text import Text

from kit.places import GOLDEN, ROOT
from kit.terminal import on_terminal
from tools.record_cli import PAGE, make_artifacts, setting, settled

PICTURE = ROOT / "docs" / "_static" / "cli.svg"
COLUMNS = 100
COMMANDS = ("jaxexp inspect scores.jaxexp", "jaxexp compat old")
RELEASES = ("0.4.25", "0.4.30", "0.5.3", "0.6.2", "0.8.1", "0.10.2")
# rich's own, without its fonts: they would come from another server.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>What jaxexp prints on a terminal</title>
<style>
.{unique_id}-matrix {{
  font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre
}}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed() -> list[tuple[str, str]]:
    """The commands, with what they print in colour."""
    with tempfile.TemporaryDirectory() as place:
        folder, env = setting(Path(place))
        make_artifacts(PAGE.read_text(encoding="utf-8"), folder, env)
        (folder / "old").mkdir()
        for release in RELEASES:
            (folder / "old" / f"{release}.bin").write_bytes((GOLDEN / f"jax-{release}" / "poly.bin").read_bytes())
        env = {name: value for name, value in env.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}
        return [(c, settled(on_terminal(["sh", "-c", c], 50, COLUMNS, cwd=folder, env=env)[1])) for c in COMMANDS]


def drawn(sessions: list[tuple[str, str]]) -> str:
    """The picture of some commands and what they printed."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for number, (command, output) in enumerate(sessions):
        console.print(Text(("\n" if number else "") + f"$ {command}", style="bold"))
        console.print(Text.from_ansi(output.rstrip("\n")), soft_wrap=True)
    return console.export_svg(title="jaxexp", code_format=FORMAT, unique_id="cli")


def texts(picture: str) -> list[str]:
    """What stands in a picture, without what a release of rich adds to it."""
    return [html.unescape(text).replace("\xa0", " ").strip() for text in re.findall(r">([^<]+)</text>", picture)]


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    PICTURE.write_text(drawn(printed()), encoding="utf-8")
