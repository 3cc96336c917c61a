"""Descriptions are rendered to a few harmless elements."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.server.rendering import markdown

ELEMENTS = {"p", "em", "strong", "code", "pre", "ul", "ol", "li", "a", "br"}
ATTRIBUTES = {("a", "href"), ("a", "title"), ("ol", "start"), ("code", "class")}
SCHEMES = {"", "http", "https", "mailto"}
ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![a](x.png)",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java\tscript:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "[a](vbscript:x)",
    "[a](file:///etc/passwd)",
    "[a](/x 'y\" onmouseover=\"alert(1)')",
    '[a](http://x"onmouseover=alert(1))',
    "[a][b]\n\n[b]: javascript:alert(1)",
    "<javascript:alert(1)>",
    "`<b>` ``` <script>",
    '```"><script>alert(1)</script>\nx\n```',
    "1. <svg/onload=alert(1)>",
    "# heading\n<!-- comment --><style>*{}</style>",
    "\x00\u202e[a](\x01javascript:alert(1))",
]


class HarmParser(HTMLParser):
    """Elements and attributes of HTML as a browser parses them."""

    def __init__(self) -> None:
        super().__init__()
        self.odd: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ELEMENTS:
            self.odd.append(tag)
        for name, value in attrs:
            if (tag, name) not in ATTRIBUTES:
                self.odd.append(f"{tag} {name}")
            if name == "href" and urlsplit((value or "").strip()).scheme not in SCHEMES:
                self.odd.append(str(value))

    def handle_comment(self, data: str) -> None:
        self.odd.append(data)


def harm_in(text: str) -> list[str]:
    result = HarmParser()
    result.feed(markdown(text))
    result.close()
    return result.odd


def test_markdown_attack_is_rendered_harmless(subtests: pytest.Subtests) -> None:
    for attack in ATTACKS:
        with subtests.test(attack=attack):
            assert harm_in(attack) == []


@given(st.lists(st.sampled_from([*ATTACKS, "*", "`", "[", "](", ")", "\n", "<", ">", '"', "&"])))
def test_markdown_combined_attacks_are_rendered_harmless(fragments: list[str]) -> None:
    assert harm_in("".join(fragments)) == []


def test_markdown_common_syntax_is_rendered() -> None:
    text = "Weather, *hourly*.\n\n- `temp` in F\n- see [the source](https://example.org/a?b=1)"
    shown = markdown(text)
    assert "<em>hourly</em>" in shown
    assert shown.count("<li>") == 2
    assert '<a href="https://example.org/a?b=1">the source</a>' in shown
