"""C1: rendering of untrusted Markdown as safe HTML, without loss of text and in limited time."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.pages import rendering
from etl.pages.rendering import MAX_CHARACTERS, TAGS

TAG = re.compile(r"<\s*/?\s*([a-zA-Z][^\s/>]*)([^>]*)>")
ATTRIBUTE = re.compile(r"\s([a-zA-Z:-]+)=\"([^\"]*)\"")
KNOWN = {"href", "rel", "colspan", "rowspan", "class", "start"}

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](http://evil.example/x.png)",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href='&#106;avascript:alert(1)'>x</a>",
    "<a href=' javascript:alert(1)'>x</a>",
    "<a href='//evil.example' target=_blank ping=http://evil.example>x</a>",
    "<iframe src=http://evil.example></iframe>",
    "<style>body { display: none }</style>",
    "<p style='position:fixed;inset:0;background:url(http://evil.example)'>x</p>",
    "<form action=http://evil.example><input name=csrfmiddlewaretoken><button>Go</button></form>",
    "<td id=document class=message name=body hx-get=/app/sign-out hx-trigger=load data-events=/x>x</td>",
    "<div hx-get='/x' hx-trigger='load'></div>",
    "<svg><animate onbegin=alert(1)></svg>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--><img src=1 onerror=alert(1)>">',
    '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "<table><tr><td background=http://evil.example>x</td></tr></table>",
    "<base href=http://evil.example><link rel=stylesheet href=//evil.example><meta http-equiv=refresh content=0>",
    "<object data=x></object><embed src=x><video src=x><audio src=x><source srcset=x>",
    "<!--><script>alert(1)</script-->",
    "<?php echo 1 ?><![CDATA[<script>alert(1)</script>]]>",
    "<textarea><script>alert(1)</script></textarea><title>x</title><xmp><b></xmp>",
    "</div></article></main><script>alert(1)</script>",
    '<http://evil.example/"onmouseover=alert(1)>',
    "[x]: javascript:alert(1)\n[x]",
    "```html\n<script>alert(1)</script>\n```",
]


def render(text: str) -> str:
    """Return the HTML of a text, which must not be refused as too complex."""
    html = rendering.render(text)
    assert html is not None
    return html


def is_plain(text: str) -> bool:
    return rendering.render(text) is None


def assert_harmless(html: str) -> None:
    for name, attributes in TAG.findall(html):
        assert name.lower() in TAGS, html
        assert not ATTRIBUTE.sub("", attributes).strip(" /"), html  # other notations, such as `onclick=x`
        for attribute, value in ATTRIBUTE.findall(attributes):
            assert attribute in KNOWN, html
            if attribute == "href":
                assert value.startswith(("http://", "https://", "mailto:")), html
            if attribute == "class":
                assert set(value.split()) <= {"left", "center", "right"}, html


@pytest.mark.parametrize("text", HOSTILE)
def test_harmful_markup_is_removed(text: str) -> None:
    for around in (
        "{}",
        "A word {} and another.",
        "> {}",
        "| a |\n| - |\n| {} |",
        "<table><tr><td>{}</td></tr></table>",
    ):
        assert_harmless(render(around.format(text)))


@given(
    st.lists(
        st.sampled_from([*HOSTILE, "<", ">", '"', "'", "\n", "\n\n", "`", "|", "*", "<td ", "<a href="]), max_size=8
    )
)
def test_fragments_of_harmful_markup_stay_harmless(parts: list[str]) -> None:
    assert_harmless(render("".join(parts)))


def test_links_are_marked_external_and_nofollow() -> None:
    html = render("[terms](https://lamps.example/terms) and [ours](/app/account)")
    assert 'href="https://lamps.example/terms" rel="nofollow noopener noreferrer ugc"' in html
    assert "/app/account" not in html
    assert "target" not in html


def test_unknown_tags_are_shown_as_text() -> None:
    """A document may be about markup, so none of its text may disappear."""
    html = render("Use List<String> and <script>alert(1)</script>, not <iframe src=x>.\n\n<custom-tag>x</custom-tag>")
    for text in (
        "List&lt;String&gt;",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "&lt;iframe src=x&gt;",
        "&lt;custom-tag&gt;",
    ):
        assert text in html


def test_markdown_and_html_tables_are_kept() -> None:
    html = render(
        "<table><tr><td colspan=2 style='color:red'>Sum</td></tr></table>\n\n| a | b |\n| --: | - |\n| 1 | 2 |"
    )
    assert '<td colspan="2">Sum</td>' in html
    assert '<td class="right">1</td>' in html
    assert "style" not in html


def test_images_are_replaced_by_their_text() -> None:
    assert "<em>[A lamp]</em>" in render("![A lamp](http://lamps.example/lamp.png)")


BOMBS = {
    "quotes": ">" * 100_000 + "x",
    "lists": "- " * 50_000 + "x",
    "indented": "\n".join(" " * 2 * depth + "- x" for depth in range(1_000)),
    "brackets": "[" * 60_000,
    "images": "![" * 30_000,
    "few images": "![" * 900,
    "stars": "*a**b" * 12_000,
    "few stars": "*a**b" * 3_900,
    "ticks": "".join("`" * number + " " for number in range(340)),
    "tags": "<b>" * 20_000,
    "tables": "<table><tr><td>" * 4_000,
    "columns": "|a" * 500 + "\n" + "|-" * 500 + "\n" + "|1\n" * 10_000,
    "blanks": "\n" * 64_000,
    "megabytes": "word " * 2_000_000,
    "attributes": "<a " + "x=1 " * 15_000 + ">",
    "open in each block": "<p>" + "".join(f"<b x={i}>" for i in range(2_000)) + "<p>a" * 4_000,
    "open in each paragraph": "".join(f"<b x={i}>" for i in range(1_500)) + "\n\n" + "a\n\n" * 4_000,
    "a long link in each block": "<a href='http://x/" + "y" * 30_000 + "'>" + "<p>a" * 8_000,
    "many attributes in each block": "<b " + " ".join(f"x{i}" for i in range(4_000)) + ">" + "<p>a" * 8_000,
    "closed in attributes": "".join(f"<b x={i}><a t='</b>'>" for i in range(1_000)) + "<p>a" * 8_000,
    "closed around": "".join(f"<b x={i}>" for i in range(1_500)) + "<i x=1>" * 3 + "y</b>" * 1_500,
    "crossed": "".join(f"<b x={i}>" for i in range(1_500))
    + "".join(f"<i x={i}>" for i in range(1_500))
    + "y</b>" * 1_500,
    "links in links": "<p><a>" + "".join(f"<i x={i}>" for i in range(1_500)) + "<a>y" * 8_000,
}
MAX_OUTPUT = 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_hostile_texts_are_rendered_in_time(name: str) -> None:
    """Texts that would take longer, or whose HTML would be much longer, are shown as plain text."""
    text = BOMBS[name]
    began = time.thread_time()
    assert len(rendering.render(text) or "") <= MAX_OUTPUT
    assert time.thread_time() - began < 2


COSTLY = {
    "paragraphs": "a\n\n" * 20_000,
    "lines": "a\n" * 32_000,
    "lists": "- a\n" * 16_000,
    "nested lists": "- - - - - a\n" * 4_000,
    "quotes and lists": "> - > - > - a\n" * 4_000,
    "cells": "|a|b|c|d|\n|-|-|-|-|\n" + "|1|2|3|4|\n" * 4_000,
    "missing cells": "|a" * 500 + "\n" + "|-" * 500 + "\n" + "|1\n" * 30,
    "code": "`a` " * 16_000,
}


@pytest.mark.parametrize("name", COSTLY)
def test_texts_that_take_long_are_shown_as_plain_text(name: str) -> None:
    """C1: each of them took 0.2 to 0.7 s of CPU time. The limits are numbers of steps, so they are deterministic."""
    assert is_plain(COSTLY[name])


def test_texts_are_rendered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: twelve concurrent renderings would delay the liveness probe by 6 s.

    A text that has to wait too long is shown as plain text.
    """
    monkeypatch.setattr(rendering, "WAIT_SECONDS", 0.2)
    with rendering.render_lock, ThreadPoolExecutor(1) as thread:
        assert thread.submit(rendering.render, "*Once*").result(timeout=30) is None
    assert rendering.render("*Once*") == "<p><em>Once</em></p>\n"


def test_ordinary_pages_are_rendered() -> None:
    table = "| a | b | c | d | e | f |\n" + "| - " * 6 + "|\n" + "| 1 | 2 | 3 | 4 | 5 | 6 |\n" * 100
    assert not is_plain(("A line of a contract, as wide as the page is.\n" * 6 + "\n") * 100 + table * 3)
    page = "# A title\n\n" + "A paragraph with *emphasis*, a [link](https://a.example) and `code`.\n\n" * 300
    assert not is_plain(page)
    assert "deep" in render("> " * 12 + "deep")
    assert is_plain("x" * (MAX_CHARACTERS + 1))


def test_any_amount_of_ordinary_formatting_is_rendered() -> None:
    line = "A *line*, a [**bold** link](https://a.example 'A title'), `code`, <b>a<br>b</b> and <i><u>more</u></i>.\n\n"
    assert not is_plain(line * 500)
    assert not is_plain("<b>never closed\n\n" + "A paragraph.\n\n" * 300)
    assert not is_plain("<table>" + ("<tr>" + "<td><b>1</b></td>" * 10 + "</tr>") * 300 + "</table>")


def test_too_complex_markup_is_shown_as_plain_text() -> None:
    assert is_plain(BOMBS["open in each block"])
