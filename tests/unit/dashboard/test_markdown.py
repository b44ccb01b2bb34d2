"""Markdown of messages: what is rendered, and that nothing in it can act."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from holdfast.dashboard.markdown import LONGEST_RENDERED, code, markdown, pictures
from tests.integration.dashboard.hostile import HOSTILE, MARK, UGLY

TAGS = {"a", "blockquote", "br", "button", "code", "div", "em", "hr", "img", "li", "ol", "p", "pre", "s"}
TAGS |= {
    "span",
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
    *(f"h{size}" for size in range(1, 7)),
}
ATTRIBUTES = {"alt", "class", "data-copy", "href", "rel", "src", "start", "target", "type"}

WRAPPED = (
    "{}",
    "`{}`",
    "```{}\nx\n```",
    "```html\n{}\n```",
    "[x]({})",
    "[x](<{}>)",
    '[x](http://e.example "{}")',
    "[{}](http://e.example)",
    "![{}](http://e.example/x.png)",
    "![x]({})",
    "![x](data:image/svg+xml,{})",
    "[x][y]\n\n[y]: {}",
    "<{}>",
    "| a |\n|---|\n| {} |",
    "# {}",
    "> {}",
    "- {}",
)


class Reader(HTMLParser):
    """Collects the elements and attributes that a browser would see, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(str(html))
    reader.close()
    return reader


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_hostile_strings_never_become_markup_or_addresses(wrapped: str) -> None:
    for hostile in (*HOSTILE, *UGLY):
        seen = read(markdown(wrapped.format(hostile)))
        assert seen.tags <= TAGS, hostile
        for name, value in seen.attributes:
            assert name in ATTRIBUTES, hostile
            if name == "href":
                assert value.lower().startswith(("http://", "https://", "mailto:")), hostile
            if name == "src":
                assert value.startswith("data:image/png"), hostile


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**b** *i* ~~s~~ `c`", "<p><strong>b</strong> <em>i</em> <s>s</s> <code>c</code></p>"),
        ("one\ntwo", "<p>one<br>\ntwo</p>"),
        ("| a | b |\n|---|--:|\n| 1 | 2 |", '<th class="right">b</th>'),
        ("# Head", "<h1>Head</h1>"),
        ("[x](https://e.example/?a=1&b=2)", 'href="https://e.example/?a=1&amp;b=2" target="_blank"'),
        ("[x](mailto:a@e.example)", 'href="mailto:a@e.example"'),
        ("[x](/logout)", "[x](/logout)"),
        ("[x](//e.example)", "[x](//e.example)"),
        ("[x](data:image/png;base64,AA)", "<a>x</a>"),
        ("![p](data:image/png;base64,AA)", '<img src="data:image/png;base64,AA" alt="p">'),
        ("![p](https://e.example/p.png)", 'rel="noopener noreferrer nofollow">p</a>'),
        ("[![p](https://e.example/p.png)](https://f.example)", 'nofollow">p</a></p>'),
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("```python\nif x: pass\n```", '<span class="hl-k">if</span>'),
        ("```nolanguage\nif x\n```", "<code>if x\n</code>"),
        ("    indented", "<code>indented\n</code>"),
        ("```\nnever closed", "<code>never closed"),
    ],
)
def test_markdown_is_rendered(text: str, html: str) -> None:
    assert html in markdown(text)


def test_a_text_that_is_too_long_is_shown_as_it_is() -> None:
    text = "**b** <i>" + "x" * LONGEST_RENDERED
    assert markdown(text).startswith('<div class="text">**b** &lt;i&gt;xxx')


@pytest.mark.parametrize("text", ["[" * 999, "> " * 300, "*a " * 999, "`" * 999, "![" * 999, "- " * 300])
def test_deep_nesting_is_rendered_and_keeps_its_text(text: str) -> None:
    assert read(markdown(text + "end")).text.strip().removesuffix("Copy").rstrip().endswith("end")


def test_code_keeps_every_character_but_a_last_line_end() -> None:
    for text in ("\n\n  x = '<&>'\n\n", "\tif x:\n\t\ty", "no newline"):
        for language in ("", "python", "nolanguage", "html"):
            assert read(code(text, language)).text.partition("Copy")[2].removesuffix(
                "\n"
            ) == text.removesuffix("\n")


def test_pictures_among_the_parts_of_a_message() -> None:
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "image_url", "image_url": {"url": "https://e.example/p.png"}},
        {"type": "input_image", "image_url": "data:image/webp;base64,AA"},
        {"type": "image_url", "image_url": {"url": f"javascript:{MARK}=1"}},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}},
        {"type": "image_url"},
        "text",
    ]
    assert list(pictures(content)) == [
        ("data:image/png;base64,AA", True),
        ("https://e.example/p.png", False),
        ("data:image/webp;base64,AA", True),
    ]
    assert list(pictures("text")) == list(pictures(None)) == []
