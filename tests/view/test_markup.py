"""What texts can do to a page: nothing, whatever puts them in."""

from __future__ import annotations

import pytest

from jaxexp._view.markup import element

pytestmark = pytest.mark.once(reason="nothing here is about JAX")


def test_texts_and_attributes_are_escaped() -> None:
    evil = "<b>\x1b[31m\u202e\u2066\ud800\n\"'&"
    escaped = r"&lt;b&gt;\x1b[31m\u202e\u2066\ud800\n&quot;&#x27;&amp;"
    assert element("p", evil, title=evil) == f'<p title="{escaped}">{escaped}</p>'
