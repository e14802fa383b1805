"""The URI of a document: one way to write it, and the spellings that mean it (D7)."""

import pytest

from okf_mcp_server.uris import document_uri, names_owner, normal_uri


@pytest.mark.row("D7")
def test_each_part_of_a_uri_is_one_segment() -> None:
    assert document_uri("a b", "größe", "1/2?#[%]:@") == (
        "knowledge://a%20b/gr%C3%B6%C3%9Fe/1%2F2%3F%23%5B%25%5D:@"
    )


@pytest.mark.row("D7")
@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("knowledge://Acme/note/a:b", "knowledge://Acme/note/a:b"),
        ("KNOWLEDGE://acme/note/a%3Ab", "knowledge://Acme/note/a:b"),
        ("knowledge://%41cme/n%6fte/%c3%9f", "knowledge://Acme/note/%C3%9F"),
        ("knowledge://acme/note/ß", "knowledge://Acme/note/%C3%9F"),
        ("knowledge://acme/note/..", "knowledge://Acme/note/.."),
        ("knowledge://other/note/a", None),
        ("knowledge://acme/note", None),
        ("knowledge://acme/note/a/b", None),
        ("knowledge://acme/note/a?b", None),
        ("knowledge://acme/note/%zz", None),
        ("knowledge://acme/note/%ff", None),
        ("knowledge://acme/note/\udc80", None),
        ("https://acme/note/a", None),
        ("", None),
    ],
    ids=ascii,
)
def test_a_uri_in_another_spelling_is_written_our_way(uri: str, normal: str | None) -> None:
    assert normal_uri("Acme", uri) == normal


@pytest.mark.row("D7")
@pytest.mark.parametrize(
    ("uri", "is_ours"),
    [
        ("knowledge://acme", True),
        ("knowledge://ACME/note#x", True),
        ("Knowledge://%61cme/", True),
        ("knowledge://acmes/note/a", False),
        ("knowledge:acme", False),
        ("https://acme/note/a", False),
    ],
)
def test_a_uri_that_is_not_whole_has_an_owner_too(uri: str, *, is_ours: bool) -> None:
    assert names_owner("Acme", uri) is is_ours
