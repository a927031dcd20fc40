"""How the pages in this folder become a site: `make docs`."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import new_document

HERE = Path(__file__).parent
# Pages that are files of the checkout's root.
COPIES = {"contributing": "CONTRIBUTING.md", "releasing": "RELEASING.md", "changelog": "CHANGELOG.md"}
LINK = re.compile(r"^- \[[^\]]*\]\(([^)#]+)\.md\)", re.MULTILINE)
# What readers of a section search for, in their own words.
SOUGHT = re.compile(r"<!-- search: (.*?) -->", re.DOTALL)

project = "jaxexp"
author = "the jaxexp authors"
copyright = author
release = version = version_of("jaxexp")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # docstrings have Args, Returns and Raises
    "sphinx_copybutton",
]
# README.md is the list of pages where there is no site; the first page has the same list as its contents.
exclude_patterns = ["README.md"]
myst_heading_anchors = 4  # as on GitHub, so that links work there and here

# A name in single backticks is code, and a link where the reference has the name.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have short names of types, docstrings say the rest
autodoc_default_options = {"exclude-members": "__new__, __init__"}
python_display_short_literal_types = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_class_signature = "separated"  # the fields of a class are below

html_theme = "furo"
html_title = f"jaxexp {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False  # pages of the site have no source of their own: some are put together in `prepare`
html_show_sourcelink = False
html_use_index = False  # the search is better, and fits on a phone
html_show_sphinx = False
html_search_scorer = str(HERE / "scorer.js")
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "default"
pygments_dark_style = "github-dark"

# Prompts, and what a program printed, are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
copybutton_selector = "div:not(.highlight-text):not(.highlight-none) > div.highlight > pre"


def contents() -> str:
    """The tables of contents, one for each heading of README.md: the pages are listed there and nowhere else."""
    found = []
    for section in (HERE / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        caption, _, text = section.partition("\n")
        pages = [page for page in LINK.findall(text) if page != "index"]
        if pages:
            found.append(
                f"```{{toctree}}\n:hidden:\n:caption: {caption.partition(':')[0]}\n\n" + "\n".join(pages) + "\n```\n"
            )
    return "\n".join(found)


def prepare(app: Any, name: str, source: list[str]) -> None:
    """Gives the first page its contents, and copies their text; names files elsewhere by their paths."""
    if name == "index":
        source[0] += "\n" + contents()
    if name in COPIES:
        original = HERE.parent / COPIES[name]
        app.env.note_dependency(str(original))
        text = original.read_text(encoding="utf-8").replace("](docs/", "](")
        for page, file in COPIES.items():
            text = text.replace(f"]({file})", f"]({page}.md)")
        source[0] = re.sub(r"\[[^\]]*\]\((?![a-z]+:|[^)]*\.md)([^)#]+)\)", r"`\1`", text)
    source[0] = re.sub(r"\[[^\]]*\]\((?:\.\./)+((?:cpp|schema|tests|bench|python)/[^)]*)\)", r"`\1`", source[0])


def resolve_error(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Links the name of an error, which stands alone in docstrings and pages, with its class in `jaxexp.errors`."""
    target = f"jaxexp.errors.{node['reftarget'].rpartition('.')[2]}"
    if node.get("refdomain") != "py" or target not in env.domains["py"].objects:
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)


def index_sections(app: Any, exception: Exception | None) -> None:
    """Adds the sections of all pages to the index of the search, as if each were a page named `page#anchor`.

    Sphinx finds pages that have all words of a question, wherever they stand, and shows their beginnings. scorer.js
    makes links of these names, and puts sections before pages.
    """
    indexer = getattr(app.builder, "indexer", None)
    if exception is not None or indexer is None:
        return
    for page in sorted(app.env.found_docs):
        title, file = app.env.titles[page].astext(), app.env.doc2path(page, base=False)
        for section in [*app.env.get_doctree(page).findall(nodes.section)]:
            words = alone(section)
            if isinstance(section.parent, nodes.document):  # the page up to its first section
                indexer.feed(f"{page}#", file, title, words)
            else:
                words += nodes.paragraph("", title)
                heading = section.next_node(nodes.title).astext()
                indexer.feed(f"{page}#{section['ids'][0]}", file, f"{title} > {heading}", words)
    index = indexer.freeze()
    for heading, places in index["alltitles"].items():  # which the pages have, too
        index["alltitles"][heading] = [place for place in places if "#" not in index["docnames"][place[0]]]
    with open(Path(app.outdir) / "searchindex.js", "w", encoding="utf-8") as file:
        app.builder.indexer_format.dump(index, file)


def alone(section: nodes.section) -> nodes.document:
    """A section without those inside of it, and with the words that readers search for."""
    document = new_document("")
    document += [child for child in section if not isinstance(child, nodes.section)]
    sought = [words for raw in document.findall(nodes.raw) for words in SOUGHT.findall(raw.astext())]
    for words in re.split(r",\s*", ", ".join(sought)) if sought else ():
        document += nodes.paragraph("", words)
        document += addnodes.index(entries=[("single", words, "", "main", None)])
    return document


def setup(app: Any) -> None:
    app.connect("source-read", prepare)
    app.connect("missing-reference", resolve_error)
    app.connect("build-finished", index_sections)
