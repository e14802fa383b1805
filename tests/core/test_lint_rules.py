"""The rules of the linter, each on a repository of its own (T4)."""

import re
from pathlib import Path

import pytest

import okf_mcp_server
from okf_mcp_server import Diagnostic, load_docs
from okf_mcp_server.links import MAX_BRACKETS
from okf_mcp_server.lint_rules import RULES, find_all
from okf_mcp_server.lint_survey import survey
from okf_mcp_server.resources import find_document
from okf_mcp_server.roots import choose_scope
from okf_mcp_server.tree import WorkingTree
from support.repositories import Repository


def findings(repository: Repository, roots: str | None = ".") -> tuple[Diagnostic, ...]:
    scope = choose_scope(repository.clone, roots=roots, owner="acme", environ={})
    return find_all(survey(scope))


def finding(repository: Repository, roots: str | None = ".") -> Diagnostic:
    (found,) = findings(repository, roots)
    return found


def links_of(repository: Repository, text: str) -> list[str]:
    """Return what is found about the links of the document `design/a.md` with this body."""
    repository.document("design/a.md", id="a", body=text)
    return [f"{each.line} {each.rule} {each.message}" for each in findings(repository)]


def file(body: str = "Words.\n", **fields: str) -> str:
    lines = "".join(f"{key}: {value}\n" for key, value in fields.items())
    return f"---\nexport: true\n{lines}---\n{body}"


@pytest.mark.row("T4")
def test_one_id_of_several_documents_is_one_error_that_names_all_in_served_order(
    repository: Repository,
) -> None:
    repository.write("a/x.md", file(type="Note", id="one"))
    repository.write("b/y.md", file(type="Note", id="one"))
    repository.write("a/z.md", file(type="Guide", id="' one '"))
    repository.write("a/other.md", file(type="Note", id="two"))
    assert finding(repository, "b,a") == Diagnostic(
        "duplicate-id",
        "error",
        "b/y.md",
        4,
        "'one' is the id of 3 documents: b/y.md, a/x.md, a/z.md; "
        "give all but one of them another id",
        ("b/y.md", "a/x.md", "a/z.md"),
    )


@pytest.mark.row("T4")
def test_where_a_shared_id_is_a_files_name_the_error_says_so(repository: Repository) -> None:
    repository.write("a/index.md", file(type="Note"))
    repository.write("b/index.md", file(type="Guide"))
    assert finding(repository) == Diagnostic(
        "duplicate-id",
        "error",
        "a/index.md",
        1,
        "'index' is the id of 2 documents: a/index.md, b/index.md; "
        "the id is the first word of a file's name: add an 'id' to all but one",
        ("a/index.md", "b/index.md"),
    )


@pytest.mark.row("T4")
def test_types_with_one_slug_are_one_warning_that_names_them(repository: Repository) -> None:
    repository.write("a.md", file(type="Audit note"))
    repository.write("b.md", file(type="Audit note"))
    repository.write("c.md", file(type="audit-note"))
    repository.write("d.md", file(type="AUDIT NOTE"))
    repository.write("e.md", file(type="Guide"))
    assert finding(repository) == Diagnostic(
        "slug-collision",
        "warning",
        "a.md",
        3,
        "these types are all 'audit-note' in URIs: 'Audit note' (a.md), 'audit-note' (c.md), "
        "'AUDIT NOTE' (d.md); write the type one way",
        ("a.md", "c.md", "d.md"),
    )


@pytest.mark.parametrize(
    ("document_id", "segment", "example"),
    [
        ("two words", "two%20words", ", such as 'id: two-words'"),
        ("team/alpha", "team%2Falpha", ", such as 'id: team-alpha'"),
        ("größé", "gr%C3%B6%C3%9F%C3%A9", ""),
        ("café", "caf%C3%A9", ", such as 'id: cafe'"),
        ("決定-1", "%E6%B1%BA%E5%AE%9A-1", ""),
        ("??", "%3F%3F", ""),
    ],
)
def test_an_id_that_is_percent_encoded_is_a_warning(
    repository: Repository, document_id: str, segment: str, example: str
) -> None:
    repository.document("a.md", id=document_id)
    found = finding(repository)
    assert (found.rule, found.severity, found.line) == ("encoded-id", "warning", 4)
    assert found.message == (
        f"the id {document_id!r} makes an unreadable URI, knowledge://acme/note/{segment}; "
        f"write an id of ASCII letters, digits, '-', '.', '_' and '~'{example}"
    )


@pytest.mark.parametrize("document_id", ["a.b_c~d-1", "a:b", "a@b!$&'()*+,;=", "010"])
def test_an_id_that_stays_as_it_is_is_none(repository: Repository, document_id: str) -> None:
    repository.document("a.md", id=document_id)
    assert findings(repository) == ()


@pytest.mark.row("T4", "D8")
@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (
            file(type="Note", description="é" * 501),
            4,
            "the description has 501 characters and is cut at 500; shorten it",
        ),
        (
            file(f"\n# Title\n\n{'é' * 501}\n", type="Note"),
            6,
            (
                "the first paragraph is the description and is cut at 500 characters; "
                "add a 'description'"
            ),
        ),
        (file(type="Note", description="é" * 500), 0, None),
        (file("é" * 500, type="Note"), 0, None),
        (file("é" * 501, type="Note", description="short"), 0, None),
        (file(f"short\n\n{'é' * 501}", type="Note"), 0, None),
    ],
    ids=["declared", "paragraph", "declared, just fits", "fits", "described", "second"],
)
def test_a_description_that_is_cut_is_a_warning(
    repository: Repository, content: str, line: int, message: str | None
) -> None:
    repository.write("a.md", content)
    expected = Diagnostic("cut-description", "warning", "a.md", line, message or "")
    assert findings(repository) == ((expected,) if message else ())


UNSERVED = (
    "leads to a file that isn't served, so agents can't follow it; "
    "export that file, or link to another"
)


@pytest.mark.row("T4")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[x](b.md) [x](./b.md#y) [x](../design/b.md?z) [x](/design/b.md) [x](/c.md)", []),
        ("[x](<two words.md>) [x](two%20words.md) [x][r]\n\n[r]: b.md", []),
        ("[x](b%2emd) [x](b.md#) [x](#here) [x](?q) [x]()", []),
        ("[x](folder) [x](folder/) [x](b.txt) [x](none.png) [x](b.MD) [x](b.md/)", []),
        ("[x](https://example.com/none.md) [x](//example.com/none.md) [x](mailto:a@b.md)", []),
        ("[x](knowledge://acme/note/b) <knowledge://acme/note/two%20words>", []),
        ("[x](KNOWLEDGE://Acme/note/b#y) [x](knowledge://acme/note/%62?z)", []),
        ("[x](knowledge://other/note/none) <knowledge://other>", []),
        ("`[x](none.md)` <!-- [x](none.md) --> ![x](none.md)", []),
        (
            "words\n[x](none.md)\n",
            [
                (
                    "7 broken-link the link 'none.md' leads to design/none.md, which doesn't "
                    "exist; correct or remove it"
                )
            ],
        ),
        (
            "[x](/b.md) [x](none%0A.md)",
            [
                (
                    "6 broken-link the link '/b.md' leads to b.md, which doesn't exist; "
                    "correct or remove it"
                ),
                (
                    "6 broken-link the link 'none%0A.md' leads to design/none\\n.md, which doesn't "
                    "exist; correct or remove it"
                ),
            ],
        ),
        (
            "[x](none.md#y) [x](none.md?y) [x](none.md?z)",
            [
                f"6 broken-link the link '{path}' leads to design/none.md, which doesn't exist; "
                "correct or remove it"
                for path in ("none.md#y", "none.md?y", "none.md?z")
            ],
        ),
        (
            "[x](../../b.md) [x](/../b.md) [x](%2e%2e/../up.md)",
            [
                f"6 broken-link the link '{path}' leads out of the repository; link to a file in it"
                for path in ("%2e%2e/../up.md", "../../b.md", "/../b.md")
            ],
        ),
        (
            "[x](B.md) [x](linked/x.md) [x](folder.md)",
            [
                f"6 broken-link the link '{path}' leads to design/{path}, which {reason}; "
                "correct or remove it"
                for path, reason in (
                    ("B.md", "doesn't exist"),
                    ("folder.md", "is no file"),
                    ("linked/x.md", "lies behind a symbolic link, which is not followed"),
                )
            ],
        ),
        (
            (
                "[x](KNOWLEDGE://Acme/guide/b) [x](knowledge://acme/note/none)\n"
                "[x](knowledge://acme/note) <knowledge://acme> [x](knowledge://acme/note/b/c)"
            ),
            [
                f"{line} broken-link the link '{uri}' is no document of acme; "
                "correct the type or the id in it"
                for line, uri in (
                    (6, "KNOWLEDGE://Acme/guide/b"),
                    (6, "knowledge://acme/note/none"),
                    (7, "knowledge://acme"),
                    (7, "knowledge://acme/note"),
                    (7, "knowledge://acme/note/b/c"),
                )
            ],
        ),
        (
            "[x](plain.md)\n\n[x](link.md#y) [x](../plain.md) [x](../plain.md)",
            [
                f"6 unserved-link the link 'plain.md' {UNSERVED}",
                f"8 unserved-link the link '../plain.md' {UNSERVED}",
                f"8 unserved-link the link 'link.md#y' {UNSERVED}",
            ],
        ),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, str) else "",
)
def test_a_link_that_agents_can_not_follow_is_a_warning(
    repository: Repository, text: str, expected: list[str]
) -> None:
    repository.document("design/b.md", id="b")
    repository.document("design/two words.md", id="b2")
    repository.document("design/spaced.md", id="c2", type="Other")
    repository.document("c.md", id="c")
    repository.write("design/two.md", file(type="Note", id="two words"))
    repository.write("plain.md", "Words\n")
    repository.write("design/plain.md", "Words\n")
    repository.write("design/folder.md/x", "")
    repository.write("elsewhere/x.md", "Words\n")
    repository.link("design/link.md", "b.md")
    repository.link("design/linked", "../elsewhere")
    found = links_of(repository, text)
    assert [each for each in found if "encoded-id" not in each] == expected


def test_a_link_to_a_document_that_has_anothers_uri_is_a_warning(repository: Repository) -> None:
    repository.write("a.md", file("[x](b.md) [x](c.md)", type="Note"))
    repository.write("b.md", file(type="Note", id="one"))
    repository.write("c.md", file(type="Note", id="one"))
    rules = [(each.rule, each.message.partition(" leads")[0]) for each in findings(repository)]
    assert rules[0] == ("unserved-link", "the link 'c.md'")
    assert [rule for rule, _ in rules] == ["unserved-link", "duplicate-id"]


def test_a_documents_links_are_not_checked_beyond_a_bound(repository: Repository) -> None:
    assert links_of(repository, "\n\nWords\n\n[x](none.md)" + "[" * MAX_BRACKETS) == [
        (
            "8 unchecked-links its links can't be checked: more than 128 Ki characters, or 10000 "
            "brackets; split the document"
        )
    ]


@pytest.mark.parametrize(
    "uri",
    [
        *("knowledge://acme/note/b", "KNOWLEDGE://ACME/note/b", "knowledge://acme/Note/b"),
        *("knowledge://acme/note/%62", "knowledge://acme/note/B", "knowledge://acme/note/b/"),
        *("knowledge://acme//b", "knowledge://acme/note/", "knowledge://acme/n%6Fte/b"),
        *("knowledge://acme/note/two%20words", "knowledge://acme/note/%FF"),
        *("knowledge://acme/gr%C3%B6%C3%9Fe/b", "knowledge://acme/größe/b"),
    ],
)
def test_a_uri_is_good_if_the_server_would_answer_it(repository: Repository, uri: str) -> None:
    repository.document("b.md", id="b")
    repository.document("c.md", id="two words")
    repository.document("d.md", id="b", type="Größe")
    served = load_docs(WorkingTree(repository.clone), owner="acme")
    found = links_of(repository, f"[x]({uri})")
    is_good = not any("broken-link" in each for each in found)
    assert is_good is (find_document(served, "acme", uri) is not None)


@pytest.mark.row("T4")
@pytest.mark.parametrize(
    ("path", "root"),
    [("docs/deep/a.md", "docs"), ("a.md", "."), ("two words/a.md", "two words")],
)
def test_a_file_that_opts_in_beyond_the_default_roots_is_a_warning(
    repository: Repository, path: str, root: str
) -> None:
    for each in ("design/b.md", "backlog/docs/c.md", "backlog/decisions/d.md", path):
        repository.document(each)
    repository.write("docs/no-type.md", file())
    repository.write("docs/broken.md", "---\nexport: : true\n---\n")
    assert findings(repository, None) == (
        Diagnostic(
            "outside-roots",
            "warning",
            path,
            1,
            "the file opts in, but the stdio server searches only design, backlog/docs, "
            f"backlog/decisions; move it there, or let server and linter search {root}, too "
            "(--roots, OKF_MCP_ROOTS)",
        ),
    )
    assert findings(repository, "design,backlog/docs,backlog/decisions") == ()


@pytest.mark.row("T4")
@pytest.mark.parametrize("name", ["a.MD", "a.markdown", "a.mdx", ".a.Mkd"])
def test_a_file_that_opts_in_under_a_name_of_another_kind_is_a_warning(
    repository: Repository, name: str
) -> None:
    repository.document(f"design/{name}")
    repository.write("design/plain.MD", "Words\n")
    repository.document("design/good.md")
    suffix = Path(name).suffix
    assert finding(repository) == Diagnostic(
        "near-miss",
        "warning",
        f"design/{name}",
        1,
        f"not exported: the name ends in {suffix!r}; rename the file so that it ends in '.md'",
    )


@pytest.mark.row("T4", "D4")
def test_what_the_loader_says_is_said_as_it_is(repository: Repository) -> None:
    repository.write("latin.md", b"---\nexport: true\ntype: \xe9\n---\n")
    repository.write("typeless.md", file())
    repository.write("dots.md", file(type="Note", id="'..'"))
    repository.write("quoted.md", '---\nexport: "true"\ntype: Note\n---\n')
    served = load_docs(WorkingTree(repository.clone), owner="acme")
    found = findings(repository, ".,none")
    assert {each for each in found if each.rule != "empty-root"} == set(served.diagnostics)
    assert {each.rule for each in found} == {
        *("unreadable", "missing-type", "invalid-id", "near-miss", "empty-root"),
    }


def test_findings_are_ordered_by_path_line_and_rule(repository: Repository) -> None:
    for path in ("b.md", "B.md", "é.md", "a/z.md", "a.md"):
        repository.write(path, file("\n[x](none.md) [x](gone.md)\n\n[x](none.md)", type="Note"))
    repository.write("typeless.md", file())
    found = findings(repository)
    keys = [(each.path, each.line, each.rule, each.message) for each in found]
    assert keys == sorted(keys)
    assert list(dict.fromkeys(each.path for each in found)) == [
        *("B.md", "a.md", "a/z.md", "b.md", "typeless.md", "é.md")
    ]
    assert found == findings(repository)


def test_every_finding_has_the_severity_of_its_rule(repository: Repository) -> None:
    severities = {rule.name: rule.severity for rule in RULES}
    assert [name for name, severity in severities.items() if severity == "error"] == [
        *("duplicate-id", "missing-type")
    ]
    repository.write("a.md", file(type="Note", id="x y"))
    repository.write("b.md", file(type="note", id="x y"))
    repository.write("c.md", file())
    found = findings(repository)
    assert {each.rule for each in found} == {
        *("duplicate-id", "encoded-id", "missing-type", "slug-collision")
    }
    assert all(each.severity == severities[each.rule] for each in found)


def test_every_rule_of_the_loader_is_one_of_the_linters() -> None:
    package = Path(okf_mcp_server.__file__).parent
    sources = "".join((package / name).read_text() for name in ("documents.py", "snapshot.py"))
    by_loader = set(re.findall(r'Fault\(\s*"([a-z-]+)"', sources))
    assert {"unreadable", "missing-type", "empty-root"} <= by_loader
    assert by_loader - {rule.name for rule in RULES} == {"duplicate-uri"}


def test_a_clean_repository_has_no_finding(repository: Repository) -> None:
    repository.document("a.md", body="[b](b.md)")
    repository.document("b.md", body="[a](a.md)")
    assert findings(repository) == ()


@pytest.mark.row("T4")
def test_a_link_of_any_length_is_judged_at_once_and_quoted_in_part(repository: Repository) -> None:
    found, _ = links_of(repository, f"[x]({'a/' * 50_000}b.md)")  # the other: it is a description
    assert "a/a/a/…' leads to design/a/a" in found
    assert len(found) < 600


@pytest.mark.row("T4")
def test_an_id_of_very_many_documents_is_a_short_message(repository: Repository) -> None:
    for number in range(12):
        repository.document(f"{number:02}.md", id="one")
    found = finding(repository)
    assert len(found.paths) == 12
    assert found.message.startswith("'one' is the id of 12 documents: 00.md, 01.md,")
    assert "09.md and 2 more; give all but one" in found.message
