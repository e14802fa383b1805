"""What an author is told where the YAML parser gave up (D4)."""

import pytest

from okf_mcp_server.frontmatter import FrontmatterError, read_frontmatter

QUOTES = "a value that holds ': ' or begins with one of @ ` * & % ! | > { [ needs quotes"
TAB = "indent with blanks, not with a tab"
EARLY = "a value in quotes ends too early; use the other kind of quotes"


@pytest.mark.row("D4")
@pytest.mark.parametrize(
    ("block", "line", "advice"),
    [
        ("title: a: b", 2, QUOTES),
        ("url: http://x: y", 2, QUOTES),
        ("title: @x", 2, QUOTES),
        ("title: `x`", 2, QUOTES),
        ("title: *x*", 2, QUOTES),
        ("title: [Draft] x", 2, QUOTES),
        ("title: %x", 2, QUOTES),
        ("\ttitle: x", 2, TAB),
        ("a:\n\tb: c", 3, TAB),
        ("title: 'Don't do it'", 2, EARLY),
        ('title: "The "best" way"', 2, EARLY),
        (
            'path: "C:\\users"',
            2,
            "a backslash in double quotes begins an escape; use single quotes",
        ),
        ("title: 'open", 2, "a value in quotes has no end"),
        (
            "title: [a, b",
            2,
            "a list or a mapping has no end; a text that begins with [ or { needs quotes",
        ),
        (
            "title: one\ntwo three\ntype: x",
            3,
            "a line without a key; indent it if it goes on with the value above",
        ),
        (
            "<<<<<<< HEAD\ntitle: a\n=======\ntitle: b\n>>>>>>> x",
            2,
            "a merge conflict is left in it; settle it",
        ),
        ("title: {% x %}", 2, "put what the template fills in into quotes"),
        ("type:Note\nid: x", 2, "write a blank after the colon"),
    ],
)
def test_what_is_told_is_what_mends_the_line(block: str, line: int, advice: str) -> None:
    with pytest.raises(FrontmatterError) as caught:
        read_frontmatter(f"---\n{block}\n---\n")
    assert caught.value.reason.startswith(f"{advice} (")
    assert caught.value.line == line


@pytest.mark.row("D4")
@pytest.mark.parametrize("block", ["- a\nb: c", "a: b\n c: d", "title: a # b\n:x"])
def test_where_nothing_is_known_the_parser_has_its_say(block: str) -> None:
    with pytest.raises(FrontmatterError) as caught:
        read_frontmatter(f"---\n{block}\n---\n")
    assert "(" not in caught.value.reason


@pytest.mark.parametrize("character", ["'", '"', "[", ":", "{", " ", "-", "\\"])
def test_a_line_of_64_kib_is_judged_at_once(character: str) -> None:
    block = f"title: {character * 60_000}: {character * 5_000}\n\t: {{"
    with pytest.raises(FrontmatterError):
        read_frontmatter(f"---\n{block}\n---\n")


@pytest.mark.row("D4")
@pytest.mark.parametrize("good", [f'description: "{"x" * 1200}"', 'title: "{{ x }}"'])
def test_a_good_line_above_is_not_blamed(good: str) -> None:
    with pytest.raises(FrontmatterError) as caught:
        read_frontmatter(f"---\n{good}\ntitle: a: b\n---\n")
    assert (caught.value.reason.startswith(QUOTES), caught.value.line) == (True, 3)
