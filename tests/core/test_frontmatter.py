"""The block at the head of a file, and the body below it (D2, D3)."""

import pytest

from okf_mcp_server.frontmatter import (
    MAX_BLOCK_BYTES,
    Frontmatter,
    FrontmatterError,
    decode,
    read_frontmatter,
)


def read(text: str) -> Frontmatter:
    frontmatter = read_frontmatter(text)
    assert frontmatter is not None
    return frontmatter


def refusal(text: str) -> tuple[str, int]:
    with pytest.raises(FrontmatterError) as caught:
        read_frontmatter(text)
    return caught.value.reason, caught.value.line


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"\xef\xbb\xbf", ""),
        (b"\xef\xbb\xbfa", "a"),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa"),
        (b"a\xef\xbb\xbfb", "a\ufeffb"),
        (b"a\r\nb\rc\nd", "a\nb\nc\nd"),
        (b"a\r\r\nb\n\rc\r", "a\n\nb\n\nc\n"),
        ("a\x85b\u2028c\u2029d\x0be\x0cf\x1cg".encode(), "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg"),
        (b"nul \x00", "nul \x00"),
    ],
    ids=ascii,
)
def test_one_bom_is_dropped_and_only_cr_and_crlf_become_lf(raw: bytes, text: str) -> None:
    assert decode(raw) == text


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    "text",
    [
        "---\na: b\n---\nbody",
        "--- \t\na: b\n---\t \nbody",
        "---\n\na: b\n\n---\nbody",
        "---\na: b\n...\n---\nbody",
        "---\n# comment\na: b # comment\n---\nbody",
        "---\n{a: b}\n---\nbody",
        "---\n\ufeffa: b\n---\nbody",
    ],
    ids=repr,
)
def test_three_dashes_on_line_1_open_a_block_that_the_next_three_close(text: str) -> None:
    assert (read(text).fields, read(text).body) == ({"a": "b"}, "body")


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "---",
        "---\n",
        "---\n---",
        "---\n---\nbody",
        "---\na: b\n",
        "---\na: b\n--- x\n",
        "---\na: b\n----\n",
        "---\na: b\n ---\n",
        "---\na: b\n--\n",
        "---\na: b\n...\n",
        "---\na: b\n---\x0b\n",
        "---\na: b\n---\u00a0\n",
        "---\na: b\n---\u2028\n",
        "---\u2028a: b\u2028---\u2028body",
        "---\x85a: b\x85---\x85body",
        "\n---\na: b\n---\n",
        " ---\na: b\n---\n",
        "\ufeff---\na: b\n---\n",
        "----\na: b\n----\n",
        "--- yaml\na: b\n---\n",
        "---\n- a: b\n---\n",
        "---\nwords\n---\n",
        "---\n# a: b\n---\n",
        "---\n~\n---\n",
        "+++\na = 1\n+++\n",
        "text\n---\na: b\n---\n",
    ],
    ids=repr,
)
def test_anything_else_is_no_frontmatter(text: str) -> None:
    assert read_frontmatter(text) is None


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    ("tail", "body"),
    [
        ("---", ""),
        ("---\n", ""),
        ("---\n\n  text\n\n", "\n  text\n\n"),
        ("---\nx\n---\ny: z\n---\n", "x\n---\ny: z\n---\n"),
        ("---\n---\n", "---\n"),
    ],
    ids=repr,
)
def test_the_body_is_all_that_follows_the_closing_fence(tail: str, body: str) -> None:
    assert read(f"---\na: b\n{tail}").body == body


@pytest.mark.row("D2")
def test_dashes_inside_a_block_scalar_do_not_close_the_block() -> None:
    frontmatter = read("---\na: |\n  one\n  ---\n  two\nb: 'x\n  ---'\n---\nbody")
    assert frontmatter.fields == {"a": "one\n---\ntwo\n", "b": "x ---"}


@pytest.mark.row("D2", "D3")
def test_a_frontmatter_says_what_it_holds_and_on_which_lines() -> None:
    frontmatter = read("---\nexport: yes\n\nid:   010 \nnothing: ~\ntags: [a, 1]\n---\nbody\n")
    assert frontmatter == Frontmatter(
        export=True,
        keys=("export", "id", "nothing", "tags"),
        values=("yes", "010", None, ("a", "1")),
        key_lines=(2, 4, 5, 6),
        body="body\n",
        body_line=8,
    )
    assert frontmatter.fields == {"export": "yes", "id": "010", "tags": ("a", "1")}
    assert frontmatter.lines == {"export": 2, "id": 4, "nothing": 5, "tags": 6}


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("  words  ", "words"),
        ("'  words  '", "words"),
        ("|\n  words\n\n", "words"),
        ("\u00a0words\u00a0", "words"),
        ("2026-05-01", "2026-05-01"),
        ("1.10", "1.10"),
        ("off", "off"),
        ("''", None),
        ("'  '", None),
        ('"\\u2003"', None),
        ("", None),
        ("~", None),
        ("null", None),
        ("'~'", "~"),
        ("[words]", None),
        ("{words: x}", None),
    ],
    ids=ascii,
)
def test_a_scalar_is_trimmed_and_absent_if_blank_null_or_a_collection(
    written: str, text: str | None
) -> None:
    assert read(f"---\nkey: {written}\n---\n").scalar("key") == text


def test_a_key_that_is_not_there_has_no_scalar() -> None:
    assert read("---\na: b\n---\n").scalar("b") is None


@pytest.mark.row("D1")
@pytest.mark.parametrize("block", ["Export: true", "meta: {export: true}", "'export ': true"])
def test_only_the_key_export_itself_opts_in(block: str) -> None:
    assert read(f"---\n{block}\n---\n").export is False


@pytest.mark.row("D1")
@pytest.mark.parametrize("block", ["export: true", '"export": on', "<<: {export: yes}"])
def test_a_true_export_opts_in(block: str) -> None:
    assert read(f"---\n{block}\n---\n").export is True


@pytest.mark.row("D3")
@pytest.mark.parametrize("character", ["x", "é", "😀"])
def test_a_block_of_64_kib_is_read_and_one_byte_more_is_not(character: str) -> None:
    room = MAX_BLOCK_BYTES - len("a: \n")
    count, rest = divmod(room, len(character.encode()))
    value = character * count + "y" * rest

    assert MAX_BLOCK_BYTES == 65_536
    assert read(f"---\na: {value}\n---\n").fields == {"a": value}
    assert refusal(f"---\na: {value}y\n---\n") == ("the frontmatter is longer than 64 KiB", 1)


@pytest.mark.row("D2")
def test_a_long_block_that_is_never_closed_is_no_frontmatter() -> None:
    assert read_frontmatter("---\n" + "a: b\n" * 100_000) is None


@pytest.mark.row("D3", "D4")
@pytest.mark.parametrize(
    ("block", "line"),
    [
        ("a: b\nc: @d", 3),
        ("a: 1\nb: 2\na: 3", 4),
        ("a: !x y", 2),
        ("a: b\nc: \x07", 3),
        ("a: b\n--- c", 3),
        ("a: b\n...\nc: d", 4),
    ],
    ids=repr,
)
def test_a_block_that_can_not_be_read_names_the_line_of_the_file(block: str, line: int) -> None:
    assert refusal(f"---\n{block}\n---\nbody\n")[1] == line


@pytest.mark.row("D2")
def test_a_line_separator_in_a_title_stays_in_the_title() -> None:
    frontmatter = read("---\ntitle: one\u2028export:true\nid: x\n---\n")
    assert (frontmatter.scalar("title"), frontmatter.lines["id"]) == ("one\u2028export:true", 3)
    assert refusal("---\nid: x\u2028export: true\n---\n")[1] == 2
