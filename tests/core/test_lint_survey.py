"""What the linter's rules look at."""

from pathlib import PurePosixPath

import pytest

from okf_mcp_server.lint_survey import Survey, survey
from okf_mcp_server.roots import choose_scope
from support.repositories import Repository


def look(repository: Repository, roots: str | None = None) -> Survey:
    return survey(choose_scope(repository.clone, roots=roots, owner="acme", environ={}))


def paths(documents: tuple[object, ...]) -> list[str]:
    return [str(getattr(each, "path", each)) for each in documents]


@pytest.fixture
def mixed(repository: Repository) -> Repository:
    """A repository with documents in and out of the default roots, some of them misnamed."""
    for path in (
        *("design/a.md", "design/b.MD", "design/c.markdown", "design/d.mdx", "design/e.md.txt"),
        *("docs/f.md", "docs/g.Mkd", "h.md", "designs/i.md"),
    ):
        repository.document(path)
    repository.write("docs/no-type.md", "---\nexport: true\n---\n")
    repository.write("docs/no.markdown", "Words\n")
    return repository


def test_without_chosen_roots_the_whole_repository_is_looked_through(mixed: Repository) -> None:
    found = look(mixed)
    assert paths(found.snapshot.documents) == ["design/a.md"]
    assert paths(found.misnamed) == [
        *("design/b.MD", "design/c.markdown", "design/d.mdx", "docs/g.Mkd"),
    ]
    assert paths(found.outside) == ["designs/i.md", "docs/f.md", "h.md"]


def test_with_chosen_roots_only_they_are_looked_through(mixed: Repository) -> None:
    found = look(mixed, "docs")
    assert paths(found.snapshot.documents) == ["docs/f.md"]
    assert paths(found.misnamed) == ["docs/g.Mkd"]
    assert found.outside == ()
    chosen = look(mixed, "design,backlog/docs,backlog/decisions")
    assert chosen.outside == ()


def test_a_misnamed_file_takes_no_documents_place(repository: Repository) -> None:
    repository.document("design/a.MD")
    repository.document("design/a.md")
    repository.document("a.md")
    found = look(repository)
    assert paths(found.snapshot.documents) == ["design/a.md"]
    assert (paths(found.misnamed), paths(found.outside)) == (["design/a.MD"], ["a.md"])


BEHIND_A_LINK = "lies behind a symbolic link, which is not followed"


@pytest.mark.row("D10")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file.md", None),
        ("folder/file.md", None),
        ("link.md", None),
        ("folder", "is no file"),
        ("folder.md", "is no file"),
        ("linked/file.md", BEHIND_A_LINK),
        ("away/secret.md", BEHIND_A_LINK),
        ("../secret.md", "lies outside of the repository"),
        ("folder/../../secret.md", "lies outside of the repository"),
        ("absent.md", "doesn't exist"),
        ("nul\0.md", "doesn't exist"),
        ("file.md/x.md", "doesn't exist"),
        (f"{'x' * 300}.md", "doesn't exist"),
    ],
    ids=ascii,
)
def test_a_file_is_there_if_it_is_one_and_no_link_leads_to_it(
    repository: Repository, path: str, reason: str | None
) -> None:
    repository.write("file.md", "")
    repository.write("folder/file.md", "")
    repository.write("folder.md/x", "")
    repository.link("link.md", "file.md")
    repository.link("linked", "folder")
    repository.link("away", "..")
    (repository.clone.parent / "secret.md").write_text("")
    assert look(repository).why_missing(PurePosixPath(path)) == reason


@pytest.mark.row("D10")
def test_an_absolute_path_is_never_there(repository: Repository) -> None:
    path = PurePosixPath(repository.clone.parent / "secret.md")
    (repository.clone.parent / "secret.md").write_text("")
    assert look(repository).why_missing(path) == "lies outside of the repository"
