"""Renders the Markdown of a message as HTML that can do nothing: no markup of its own, no script, no request.

HTML in a message is text. A link leads to http, https or mailto, in a window of its own; any other is shown
without its address. A picture is shown if its data is in the message; one at an address is a link to it,
since loading it would reveal the reader to that address. Code is highlighted by classes of our style sheet.

Texts above a bound are returned unrendered: a page has to answer in time whatever a model has written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

LONGEST_RENDERED = 200_000
"""Characters of a text; a longer one is shown as it is."""
LONGEST_CACHED = 20_000
LONGEST_HIGHLIGHTED = 30_000
"""Characters of a block of code; a longer one has one colour."""

_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(?:png|gif|jpeg|webp)[;,]", re.IGNORECASE)


def is_link(url: str) -> bool:
    """True: a person may follow it from a message."""
    return _LINK.match(url) is not None


def is_picture(url: str) -> bool:
    """True: the picture's data is in the URL itself, in a format that cannot contain script."""
    return _PICTURE.match(url) is not None


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        return is_link(url) or is_picture(url)


class _Renderer(RendererHTML):
    """HTML of the tokens: `RendererHTML` calls the method that has the token's name."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        url = str(tokens[idx].attrGet("href") or "")
        if not is_link(url):
            return "<a>"
        return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">'

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        url = str(token.attrGet("src") or "")
        words = self.renderInlineAsText(token.children or [], options, env)
        if is_picture(url):
            return f'<img src="{escape(url)}" alt="{escape(words)}">'
        opened = sum({"link_open": 1, "link_close": -1}.get(each.type, 0) for each in tokens[:idx])
        if opened:  # a link cannot be inside a link
            return str(escape(words or url))
        return (
            f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">'
            f"{escape(words or url)}</a>"
        )

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return str(code(tokens[idx].content, tokens[idx].info.partition(" ")[0].strip()))

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return str(code(tokens[idx].content))

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<div class="wide"><table>'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return _cell(tokens[idx])

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return _cell(tokens[idx])


def _cell(token: Token) -> str:
    """A cell of a table. Its alignment is a class: the policy forbids style attributes."""
    side = str(token.attrGet("style") or "").rpartition(":")[2]
    return f'<{token.tag} class="{side}">' if side in ("center", "right") else f"<{token.tag}>"


_PARSER = _Parser("js-default", {"html": False, "linkify": False, "breaks": True}, renderer_cls=_Renderer)
_DEEPEST = _PARSER.options["maxNesting"] - 2
_FORMATTER = HtmlFormatter(nowrap=True, classprefix="hl-")


def markdown(text: str) -> Markup:
    """The HTML of a message's Markdown, safe to put into a page."""
    if len(text) > LONGEST_RENDERED:
        return Markup('<div class="text">{}</div>').format(text)
    return _cached(text) if len(text) <= LONGEST_CACHED else _rendered(text)


def _rendered(text: str) -> Markup:
    env: dict[str, Any] = {}
    tokens = _PARSER.parse(text, env)
    if any(token.level >= _DEEPEST for token in tokens):  # the parser drops what is nested deeper
        return Markup('<div class="text">{}</div>').format(text)
    return Markup('<div class="text markdown">{}</div>').format(
        Markup(_PARSER.renderer.render(tokens, _PARSER.options, env))
    )


_cached = lru_cache(maxsize=256)(_rendered)
"""A page is rendered again after every event, with mostly the same messages."""


def code(text: str, language: str = "") -> Markup:
    """A block of code, highlighted if its language is known, with a button that copies it."""
    lexer = lexer_of(language[:40].lower()) if language and len(text) <= LONGEST_HIGHLIGHTED else None
    shown = Markup(highlight(text, lexer, _FORMATTER)) if lexer is not None else escape(text)
    name = Markup('<span class="dim">{}</span>').format(language[:40]) if language else ""
    return Markup(
        '<div class="codeblock"><p class="bar">{}'
        '<button type="button" class="copy" data-copy>Copy</button></p>'
        '<pre class="code"><code>{}</code></pre></div>'
    ).format(name, shown)


@lru_cache(maxsize=256)
def lexer_of(language: str) -> Lexer | None:
    """The lexer of a language that a fence names, or None."""
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def pictures(content: Any) -> Iterator[tuple[str, bool]]:
    """The URL of every picture among the parts of a message, and whether the page may show it. Other URLs
    than links and pictures are left out."""
    for part in content if isinstance(content, list) else ():
        given = part.get("image_url") if isinstance(part, dict) else None
        url = given.get("url") if isinstance(given, dict) else given
        if isinstance(url, str) and (is_picture(url) or is_link(url)):
            yield url, is_picture(url)


def worded(content: Any) -> Any:
    """The content without the pictures that `pictures` finds."""
    if not isinstance(content, list):
        return content
    return [part for part in content if not next(pictures([part]), None)]
