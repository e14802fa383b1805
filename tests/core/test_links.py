"""The links of a Markdown text, and the lines that they stand on."""

import os
import subprocess
import sys
import time
from pathlib import PurePosixPath

import pytest

from okf_mcp_server import load_docs
from okf_mcp_server.links import (
    MAX_BRACKETS,
    MAX_CHARACTERS,
    Link,
    find_links,
    links_by_path,
    markdown_target,
)
from okf_mcp_server.tree import WorkingTree
from support.repositories import Repository

DEADLINE_SECONDS = 60


@pytest.mark.parametrize(
    ("text", "destinations"),
    [
        ("[a](b.md)", ["b.md"]),
        ("[a](<b c.md>)", ["b c.md"]),
        ("[a](b%20c.md#d 'title')", ["b%20c.md#d"]),
        ("[a](größe.md?x=1)", ["größe.md?x=1"]),
        ("[a](b\\.md) [a](b&#46;md)", ["b.md", "b.md"]),
        ("[a](knowledge://acme/note/b)", ["knowledge://acme/note/b"]),
        ("<knowledge://acme/note/b>", ["knowledge://acme/note/b"]),
        ("[a][r], [r][] and [r]\n\n[r]: b.md", ["b.md", "b.md", "b.md"]),
        ("[![a](b.png)](c.md)", ["c.md"]),
        ("# [a](b.md)\n\n> - *[a](c.md)*\n", ["b.md", "c.md"]),
        ("| a |\n|---|\n| [a](b.md) |", ["b.md"]),
        ("no link", []),
        ("![a](b.md)", []),
        ("![[a](b.md)](c.png)", []),
        ("`[a](b.md)` and ``[a](`b.md)``", []),
        ("```\n[a](b.md)\n```", []),
        ("~~~\n[a](b.md)", []),
        ("words\n\n    [a](b.md)", []),
        ("<!-- [a](b.md)\n[a](b.md) -->", []),
        ("x <!-- [a](b.md) -->", []),
        ("<div>\n[a](b.md)\n</div>", []),
        ('<a href="b.md">b</a>', []),
        ("\\[a](b.md)", []),
        ("[a] (b.md)", []),
        ("[a](b c.md)", []),
        ("[r]: b.md", []),
        ("b.md knowledge://acme/note/b", []),
    ],
    ids=repr,
)
def test_what_is_a_link_is_what_commonmark_says(text: str, destinations: list[str]) -> None:
    assert [link.destination for link in find_links(text) or ()] == destinations


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[a](b.md)\n\n[a](b.md)", [1, 3]),
        ("words\n[a](b.md)\nand [a](b.md)", [2, 3]),
        ("# Title\n\n- one\n- [a](b.md)\n  and\n  [a](b.md)\n", [4, 6]),
        ("> words\nlazily [a](b.md)\n> [a](b.md)", [2, 3]),
        ("`code\ncode` [a](b.md)", [2]),
        ("<!-- a\ncomment --> [a](b.md)\n\n[a](b.md)", [4]),
        ("x <!-- a\ncomment --> [a](b.md)", [2]),
        ("![a\nb](c.png) [a](b.md)", [2]),
        ("[text\nof two lines](b.md) and [a](b.md)", [1, 2]),
        ("[a](\nb.md\n'a title\nof two lines') [a](b.md)", [1, 4]),
        ("hard break\\\n[a](b.md)  \n<https://example.com/>", [2, 3]),
        ("[r]: b.md\n[s]:\n  c.md\nwords\n[r] and\n[s]", [5, 6]),
        ("Two lines\n[a](b.md)\n===", [2]),
        ("| a | b |\n|---|---|\n| x | [a](b.md) |\n| [a](b.md) | [a](b.md) |", [3, 4, 4]),
    ],
    ids=repr,
)
def test_a_link_stands_on_the_line_on_which_it_begins(text: str, lines: list[int]) -> None:
    assert [link.line for link in find_links(text) or ()] == lines


def test_links_far_down_in_nested_lists_are_found() -> None:
    text = "".join(f"{'  ' * depth}- [a](b{depth}.md)\n" for depth in range(12))
    assert find_links(text) == tuple(Link(f"b{depth}.md", depth + 1) for depth in range(12))


def test_a_text_that_passes_a_bound_is_not_searched() -> None:
    assert find_links("[a](b)" * MAX_BRACKETS) is not None
    assert find_links("[a](b)" * (MAX_BRACKETS + 1)) is None
    assert find_links("[a](b)" + "<" * MAX_BRACKETS) is None
    assert find_links("[a](b)" + "x" * MAX_CHARACTERS) is None
    assert find_links("x" * MAX_CHARACTERS + "[a] (b)") == ()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 9000 + "a" + "](x)" * 9000,
        "![" * 9000 + "a" + "](x)" * 9000,
        "![" * 9000 + "](",
        "a\n![" * 9000 + "](",
        "[a\n" * 9000 + "](",
        "[a](b" * 9000,
        "> " * 100_000 + "[a](b)",
        "- " * 100_000 + "[a](b)",
        "[a](" + "(" * 400_000,
        "[a](b)" + "*" * 100_000,
        "[a](b)" + "`a" * 100_000,
        "[a](b)\n" + "- a\n" * 30_000,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_a_text_that_means_harm_is_searched_in_bounded_time(text: str) -> None:
    started = time.monotonic()
    find_links(text)
    assert time.monotonic() - started < DEADLINE_SECONDS


def test_a_snapshot_has_the_links_of_the_documents_that_have_any(repository: Repository) -> None:
    repository.document("a.md", body="words\n\n[b](b.md)\n")
    repository.document("b.md", body="no link\n")
    repository.document("c.md", body="[" * MAX_BRACKETS + "[a](b.md)\n")
    snapshot = load_docs(WorkingTree(repository.clone), owner="acme")
    links = snapshot.derive(links_by_path)
    assert links == {
        PurePosixPath("a.md"): (Link("b.md", 3),),
        PurePosixPath("c.md"): None,
    }
    assert snapshot.derive(links_by_path) is links


@pytest.mark.parametrize(
    ("destination", "target"),
    [
        ("b.md", "design/x/b.md"),
        ("../b.md#c", "design/b.md"),
        ("./a/../b%20c.md?d", "design/x/b c.md"),
        ("/b.md", "b.md"),
        ("/./a//b.md", "a/b.md"),
        ("../../b.md", "b.md"),
        ("../../../b.md", "../b.md"),
        ("../../../../a/../b.md", "../../b.md"),
        ("/../b.md", "../b.md"),
        ("%2e%2e/b.md", "design/b.md"),
        ("gr%C3%B6%C3%9Fe.md", "design/x/größe.md"),
        ("%FF.md", "design/x/\udcff.md"),
        *((each, None) for each in ("", "#b.md", "?b.md", "b.txt", "b/", "b.MD", "b.md/", "..")),
        *((each, None) for each in ("https://x/b.md", "//x/b.md", "x:b.md", "knowledge://x/b.md")),
    ],
    ids=ascii,
)
def test_a_link_leads_to_a_markdown_file_of_the_repository(
    destination: str, target: str | None
) -> None:
    expected = None if target is None else PurePosixPath(target)
    assert markdown_target(destination, PurePosixPath("design/x")) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"[a](<{'é' * 120_000}>)",
        f"[a]({'a/' * 60_000}b.md)",
        ">" * 30 + "a\n" * 50_000 + "[a](b.md)",
        "[" * 9_000 + "](b.md)",
    ],
    ids=["a long destination", "a deep one", "deep quotes", "brackets"],
)
def test_no_text_within_the_bounds_takes_long(text: str) -> None:
    # In a process of its own, which coverage doesn't slow down.
    script = (
        "import sys, time\n"
        "from okf_mcp_server.links import find_links\n"
        "find_links(sys.stdin.buffer.read().decode())\n"
        "print(time.process_time())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        input=text.encode(),
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
        timeout=120,
        check=True,
    )
    assert float(ended.stdout) < 30
