"""README.md as PyPI shows it."""

import re
import tomllib

from kit.places import ROOT


def test_every_link_on_the_page_of_pypi_leads_somewhere() -> None:
    """The build replaces the same patterns; tests/wheel/contents.py looks at what it wrote."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (fragment,) = hook["fragments"]
    readme = page = (ROOT / fragment["path"]).read_text()
    for one in hook["substitutions"]:
        page = re.sub(one["pattern"], one["replacement"], page)
    assert re.findall(r"\]\((?!https?:)", readme) and not re.findall(r"\]\((?!https?:)", page)
    assert "![" in readme and "![" not in page
    assert re.findall(r"\]\(https?:[^)]*\)", page) == re.findall(r"\]\(https?:[^)]*\)", readme)
    # Code, tables and the texts of links stay.
    assert re.findall(r"```.*?```", page, re.DOTALL) == re.findall(r"```.*?```", readme, re.DOTALL)
    assert page.count("\n|") == readme.count("\n|")
    assert "how other libraries compare" in page
