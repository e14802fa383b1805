"""Files that needn't be parsed: only such as a parse would find to be nothing of ours."""

from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.corpus import WORDS
from okf_mcp_server.documents import read_page
from okf_mcp_server.frontmatter import FrontmatterError, read_frontmatter
from okf_mcp_server.near_misses import find_near_miss
from okf_mcp_server.prescan import is_surely_nothing
from support.soak import soak_scale

PLAIN: Final = "---\ntype: Note\ntitle: Größe, it's A-1 & more!\n---\nBody.\n"


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    "block",
    [
        "title: Words and more",
        "title: Größe 日本語",
        'title: "In quotes: #1"',
        "date: 2026-05-01\nversion: 1.10\nempty:\nnone: null",
        "tags: [a, b c, d-e]\nnone: []",
        "tags:\n- a\n- b c\nmore:\n  - d\n  - e",
        "link: https://example.com/a/b?c",
        "export: false",
        "layout: page  ",
    ],
    ids=repr,
)
def test_what_is_plain_in_every_way_needs_no_parser(block: str) -> None:
    assert is_surely_nothing(f"---\n{block}\n---\nBody.\n")
    assert is_surely_nothing(f"---\n{block}\n---")


@pytest.mark.row("D1", "D2", "D3", "D4")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Words\n",
        "--- \na: b\n---\n",
        "---\n---\n",
        "---\n\n---\n",
        "---\na: b\n",
        "---\na: b\n----\n",
        "---\na: b\n---x\n",
        *(
            f"---\nlayout: page\n{block}\n---\n"
            for block in (
                *("export: true", "export: yes", "export:", "export: false # no", "export: falsch"),
                *("Export: true", "exports: 1", "exprot: true", "xeport: false", "expor: [true]"),
                *("layout: twice", "a: b: c", "a : b", "a:b", "- a", "a:\n - b", "a:\n- b\n  - c"),
                *("a: 'b'", 'a: "b', 'a: "\\q"', 'a: "b" c', "a: {b: c}", "a: [b", "a: [b: c]"),
                *("a: &b c", "a: *b", "a: !b c", "a: |\n  b", "a: >\n  b", "a: @b", "a: %b"),
                *("<<: b", "? a", "a: b # c", "a:\tb", "a: b\tc", "a: b\n  c", "...", "a: - b"),
                *("a: b\x07", "a: b\x85c: d", "a: b\u2028c", "a: \ufeffb", "a: [b, ]", "a: b:"),
            )
        ),
    ],
    ids=ascii,
)
def test_what_is_anything_else_is_left_to_the_parser(text: str) -> None:
    assert not is_surely_nothing(text)


def test_only_a_short_block_is_plain() -> None:
    lines = [f"key-{number}: some more words" for number in range(300)]
    assert is_surely_nothing("\n".join(["---", *lines, "---", "Body."]))
    assert not is_surely_nothing("\n".join(["---", *lines, *lines, "---", "Body."]))
    assert not is_surely_nothing("\n".join(["---", *(f"x{n}: y" for n in range(10_000)), "---"]))


LINES: Final = st.sampled_from(
    [*PLAIN.split("\n"), "export: false", "tags: [a, b]", "- a", "  - b", 'x: "y"', "z:", "a: b"]
)
CHARACTERS: Final = st.sampled_from(
    [
        *(
            *"abe1 :-,.'\"[]{}#&*!?|>%@`\\/\t\n\r~=",
            "\x00",
            "\x85",
            "\xa0",
            "\xad",
            "é",
            "\u0131",
            "İ",
        ),
        *(
            "\u2028",
            "\ufeff",
            "\ufffe",
            "日",
            "\U0001f600",
            "\U000e0001",
            "---\n",
            "export",
            "true",
        ),
    ]
)


@st.composite
def nearly_plain(draw: st.DrawFn) -> str:
    """Return a file that is plain, but for a few characters."""
    text = "\n".join(["---", *draw(st.lists(LINES, max_size=6)), "---", ""])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        end = at + draw(st.integers(0, 2))
        added = draw(CHARACTERS | st.characters(codec="utf-8") | st.sampled_from(TOKENS))
        text = text[:at] + added + text[end:]
    return text


TOKENS: Final = sorted({word for words in WORDS.values() for word in words})


@pytest.mark.row("D1", "D4")
@given(nearly_plain())
@example("---\nexport: false\nexport: true\n---\n")
@example("---\na: b\n---\n---\nexport: true\n")
@example("---\n" + "a: b\n" * 3 + "---\n")
@settings(
    max_examples=int(1500 * soak_scale()),
    derandomize=soak_scale() <= 1,
    database=None,
    deadline=None,
)
def test_no_verdict_changes_because_a_file_is_not_parsed(text: str) -> None:
    if not is_surely_nothing(text):
        return
    frontmatter = read_frontmatter(text)
    assert frontmatter is not None
    assert not frontmatter.export
    assert find_near_miss(text, frontmatter) is None


@pytest.mark.row("D1")
def test_a_plain_file_is_nothing_and_a_broken_one_is_still_told() -> None:
    assert read_page(PLAIN.encode()) is None
    with pytest.raises(FrontmatterError):
        read_frontmatter(PLAIN.replace("Note", "a: b"))
