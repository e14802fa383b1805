"""What holds for every file, not only for those that somebody thought of.

Hypothesis makes them, the same ones in each run; `OKF_SOAK` asks for more.
"""

import json
import re
import tempfile
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast
from urllib.parse import unquote

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from fuzz.corpus import WORDS
from fuzz.targets import TARGETS, bounded
from okf_mcp_server import Snapshot, extract_id, slugify_type
from okf_mcp_server.frontmatter import Frontmatter, FrontmatterError, decode, read_frontmatter
from okf_mcp_server.links import find_links, markdown_target
from okf_mcp_server.lint_formats import FORMATS
from okf_mcp_server.linter import lint
from okf_mcp_server.near_misses import find_near_miss
from okf_mcp_server.resources import list_resources, read_resource
from okf_mcp_server.roots import Scope
from okf_mcp_server.uris import document_uri, normal_uri
from okf_mcp_server.yaml_mistakes import find_mistake
from support.soak import soak_scale


def examples(count: int) -> settings:
    """Bound a property; the seed is fixed, so that a run repeats the one before."""
    return settings(
        max_examples=int(count * soak_scale()),
        derandomize=soak_scale() <= 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


WORDS_OF_YAML: Final = st.lists(
    st.sampled_from(WORDS["frontmatter"])
    | st.sampled_from(["\n", "\n  ", " "])
    | st.text(max_size=3),
    max_size=25,
).map("".join)
SOUND_BLOCKS: Final = [
    "export: true\ntype: Note\nid: a\n",
    "? [a]\n: b\n",
    "a: &a {b: c, d: [e, '']}\nf:\n  <<: *a\n  g: |\n    h\n\n    i\n",
    "!!str a: !!null\nb: >-\n  c\n  d\ne: ~\n",
]


def put_in(block: str, at: int, word: str) -> str:
    return f"{block[:at]}{word}{block[at:]}"


YAML_LIKE: Final = WORDS_OF_YAML | st.builds(
    put_in,
    st.sampled_from(SOUND_BLOCKS),
    st.integers(0, 40),
    WORDS_OF_YAML | st.sampled_from(WORDS["frontmatter"]),
)
"""Words in any order, or somewhere in a block that is sound without them."""
LINE_ENDS_OF_YAML: Final = "\x85\u2028\u2029"
ONE_LINE: Final = st.text(
    st.sampled_from(f"a é日\U0001f98a{LINE_ENDS_OF_YAML}\U000ffffe\U000fffff\U0010fffe\U0010ffff"),
    min_size=1,
)
LETTERS: Final = st.text(
    st.sampled_from("éÅñ한Iİß-_ \u2003.1")
    | st.characters(exclude_characters="/\0", exclude_categories=["Cs"]),
    min_size=1,
)
VALUES: Final = st.recursive(
    st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
MARKDOWN: Final = st.lists(
    st.sampled_from(
        [
            *("[", "](", ")", "]: ", "<", ">", "a.md", "../", "/", "%2e%2e", "#"),
            *("%ff", "%ed%a0%80", "knowledge://acme/", "acme", "note"),
            *("\n", "\n\n", "    ", "> ", "- ", "```", "`", "\\", "!", '"t"', "&amp;", "http://x"),
        ]
    )
    | st.text(max_size=3),
    max_size=25,
).map("".join)
FILES: Final = st.dictionaries(
    st.lists(
        st.sampled_from(["a", "b c", "é", "x\ny", "design", ".x"]), min_size=1, max_size=3
    ).map(lambda parts: f"{'/'.join(parts)}.md"),
    st.builds(
        "---\n{}: {}\ntype: {}\nid: {}\n---\n{}".format,
        st.sampled_from(["export", "export", "export", "Export", "exports"]),
        st.sampled_from(["true", "true", "true", "yes", '"true"', "no"]),
        st.sampled_from(["Note", "note", "Ä b", "'!'", "[x]", "|\n  a"]),
        st.sampled_from(["", "a", "b/c", "'..'", "é?#", "a.b", "%2e", "~", '"\\0\\n"', "z" * 5000]),
        MARKDOWN,
    ).map(str.encode)
    | st.just(b"---\nexport: true\ntype: Note\nid: a\n---\n")
    | st.binary(max_size=30),
    max_size=6,
)


def plain(value: object) -> object:
    """Return what the parser gave as the lists and mappings that JSON knows."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in cast("Mapping[str, object]", value).items()}
    if isinstance(value, tuple):
        return [plain(each) for each in cast("tuple[object, ...]", value)]
    assert isinstance(value, str)
    return value


def read_block(block: str) -> Frontmatter | None:
    return read_frontmatter(f"---\n{block}\n---\n")


# Frontmatter


@pytest.mark.row("D4")
@given(st.binary(max_size=200) | YAML_LIKE.map(str.encode))
@examples(250)
def test_whatever_a_file_holds_it_is_a_page_a_fault_or_nothing(raw: bytes) -> None:
    with TARGETS["frontmatter"]() as attempt:
        attempt(raw)


@pytest.mark.row("D3")
@given(YAML_LIKE)
@examples(200)
def test_every_line_that_is_named_is_a_line_of_the_file(block: str) -> None:
    text = decode(f"---\n{block}\n---\nbody".encode())
    lines = text.count("\n") + 1
    try:
        found = read_frontmatter(text)
    except FrontmatterError as error:
        line, reason = error.line, error.reason
        assert 1 <= line <= lines
        assert reason.isprintable()
        return
    if found is not None:
        assert all(1 < line < found.body_line <= lines for line in found.lines.values())
        assert text.split("\n")[found.body_line - 1 :] == found.body.split("\n")
        assert set(found.fields) <= set(found.lines)


@pytest.mark.row("D3")
@given(
    st.dictionaries(st.text(max_size=6), VALUES, min_size=1, max_size=4),
    st.sampled_from([None, '"', "'"]),
    st.sampled_from([None, False, True]),
    st.booleans(),
)
@examples(250)
def test_what_was_written_as_yaml_is_read_as_it_was(
    fields: dict[str, Any], style: str | None, flow: bool | None, as_unicode: bool
) -> None:
    assume("---" not in str(fields))
    # What PyYAML takes for the end of a line, we don't: written as an escape, both agree.
    as_unicode = as_unicode and not any(each in str(fields) for each in LINE_ENDS_OF_YAML)
    block = yaml.dump(  # pyright: ignore[reportUnknownMemberType] - a gap in the stubs
        fields,
        Dumper=yaml.CSafeDumper,
        default_style=style,
        default_flow_style=flow,
        allow_unicode=as_unicode,
    )
    found = read_block(block)
    assert found is not None
    assert plain(found.fields) == fields


@pytest.mark.row("D3")
@given(YAML_LIKE)
@examples(250)
def test_pyyaml_reads_the_same_text_where_it_reads_text_only(block: str) -> None:
    assume(not any(each in block for each in ("<<", "!!merge", *LINE_ENDS_OF_YAML)))
    try:
        found = read_block(block)
    except FrontmatterError:
        return
    if found is None:
        return
    # The fence ends the block earlier where one stands in it.
    source = re.split(r"(?m)^---[ \t]*$", block.replace("\r\n", "\n").replace("\r", "\n"))[0]
    theirs = yaml.CBaseLoader(source).get_single_data()
    assert set(theirs) == set(found.lines)
    assert plain(found.fields) == {key: theirs[key] for key in found.fields}


@pytest.mark.row("D3")
@given(ONE_LINE)
@example("\x85\U000fffff")
@examples(200)
def test_no_character_of_a_text_becomes_another(text: str) -> None:
    found = read_block(f"title: '{text}'")
    assert found is not None
    assert found.fields == {"title": text}


@pytest.mark.row("D3")
def test_no_word_that_stands_in_a_file_again_and_again_takes_long() -> None:
    with TARGETS["frontmatter"]() as attempt:
        for word in WORDS["frontmatter"]:
            bounded(attempt)(word.encode() * (60_000 // len(word.encode())))


@pytest.mark.row("D3")
@given(
    st.lists(st.sampled_from(WORDS["frontmatter"]) | st.characters(), min_size=2, max_size=4),
    st.sampled_from(["", "\n", "a: "]),
)
@examples(60)
def test_no_piece_that_stands_in_a_file_again_and_again_takes_long(
    pieces: list[str], between: str
) -> None:
    piece = "".join(pieces) + between
    many = (piece * (60_000 // len(piece.encode()))).encode()
    with TARGETS["frontmatter"]() as attempt:
        bounded(attempt)(many)


@given(YAML_LIKE, st.integers(-2, 40))
@examples(200)
def test_a_mistake_is_on_the_line_that_was_asked_about_or_on_the_one_before(
    text: str, line: int
) -> None:
    mistake = find_mistake(text, line)
    if mistake is not None:
        assert mistake.line in {line, line - 1}
        assert 1 <= mistake.line <= text.count("\n") + 1


@given(YAML_LIKE, st.sampled_from(["", "---\n", "\n---\n", "export: true\n", "Export: yes\n"]))
@examples(200)
def test_a_near_miss_is_a_sentence_about_a_line_of_the_file(text: str, head: str) -> None:
    text = decode((head + text + "\nexport: true\n").encode())
    try:
        found = read_frontmatter(text)
    except FrontmatterError:
        found = None
    near_miss = find_near_miss(text, found)
    if near_miss is not None:
        assert 1 <= near_miss.line <= text.count("\n") + 1
        assert near_miss.message.isprintable()


# URIs, slugs, ids

PCHARS: Final = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})+"
URI: Final = re.compile(rf"knowledge://{PCHARS}/{PCHARS}/{PCHARS}")


@pytest.mark.row("D7")
@given(*[st.text(min_size=1)] * 3)
@examples(200)
def test_a_uri_is_one_of_rfc_3986_and_says_what_it_was_made_of(
    owner: str, slug: str, document_id: str
) -> None:
    uri = document_uri(owner, slug, document_id)
    assert URI.fullmatch(uri)
    assert [unquote(part) for part in uri.split("/")[2:]] == [owner, slug, document_id]


@pytest.mark.row("D7")
@given(*[st.text(min_size=1)] * 3, st.randoms(use_true_random=False))
@examples(200)
def test_every_spelling_of_a_uri_is_the_same_uri(
    owner: str, slug: str, document_id: str, choice: Any
) -> None:
    uri = document_uri(owner, slug, document_id)
    scheme, rest = uri.split("://")
    respelt = "".join(
        f"%{ord(each):02x}" if len(each) == 1 and each != "/" and choice.random() < 0.5 else each
        for each in re.findall("%..|.", rest)
    )
    assert normal_uri(owner, uri) == uri
    assert normal_uri(owner, f"{scheme.upper()}://{respelt}") == uri


@pytest.mark.row("D7")
@given(st.text(max_size=40) | MARKDOWN.map(lambda text: f"knowledge://acme/{text}"))
@examples(200)
def test_whatever_is_asked_for_is_a_uri_of_the_owner_or_none(asked: str) -> None:
    uri = normal_uri("acme", asked)
    if uri is not None:
        assert uri.startswith("knowledge://acme/")
        assert normal_uri("acme", uri) == uri


@pytest.mark.row("D6")
@given(LETTERS)
@examples(200)
def test_a_slug_is_its_own_slug_whatever_the_form_of_its_letters(text: str) -> None:
    slug = slugify_type(text)
    assert slugify_type(slug) == slug
    assert slugify_type(unicodedata.normalize("NFD", text)) == slug
    assert all(each.isalnum() or each == "-" for each in slug)
    assert "--" not in slug
    assert slug == slug.strip("-")


@pytest.mark.row("D5")
@given(LETTERS)
@example(" ")
@examples(200)
def test_every_name_of_a_file_has_an_id_in_it(stem: str) -> None:
    document_id = extract_id(PurePosixPath(f"a/{stem}.md"))
    assert document_id
    assert document_id in f"{stem}.md"


# Links


@given(MARKDOWN)
@examples(200)
def test_a_link_is_on_a_line_of_its_text_and_leads_into_the_repository_or_out_by_its_head(
    text: str,
) -> None:
    for link in find_links(text) or ():
        assert 1 <= link.line <= text.count("\n") + 1
        target = markdown_target(link.destination, PurePosixPath("a/b"))
        if target is not None:
            assert not target.is_absolute()
            parts = target.parts
            assert ".." not in parts[next((i for i, p in enumerate(parts) if p != ".."), 0) :]


# Whole repositories


@pytest.mark.row("D7", "D10", "D11")
@given(files=FILES)
@examples(120)
def test_all_that_is_listed_reads_back(
    load: Callable[..., Snapshot], files: dict[str, bytes]
) -> None:
    snapshot = load(files)
    listed = list_resources(snapshot, None).resources
    assert len({resource.uri for resource in listed}) == len(listed) == len(snapshot.documents)
    order = [snapshot.key_at(index) for index in range(len(listed))]
    assert order == sorted(order)
    for resource in listed:
        (content,) = read_resource(snapshot, "acme", resource.uri, "2026-07-28").contents
        assert (content.uri, content.meta) == (resource.uri, resource.meta)
        assert len(content.model_dump()["text"].encode()) == resource.size
    assert all(diagnostic.message.isprintable() for diagnostic in snapshot.diagnostics)
    assert all(diagnostic.path.isprintable() for diagnostic in snapshot.diagnostics)


@given(before=FILES, after=FILES)
@examples(80)
def test_it_makes_no_difference_what_was_loaded_before(
    load: Callable[..., Snapshot], before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    anew, onward = load(after), load(after, previous=load({**after, **before}))
    assert (onward.documents, onward.diagnostics) == (anew.documents, anew.diagnostics)


@pytest.mark.row("T4", "T5")
@given(files=FILES)
@examples(40)
def test_every_repository_can_be_linted_and_told_in_every_format(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for path, content in files.items():
            file = top / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        report = lint(Scope(top, "acme", (PurePosixPath(),), has_chosen_roots=True))
    assert all(each.message.isprintable() and each.line >= 1 for each in report.findings)
    told = {name: write(report) for name, write in FORMATS.items()}
    assert len(json.loads(told["json"])["findings"]) == len(report.findings)
    assert len(told["text"].splitlines()) == len(report.findings) + 1
    assert len(told["github"].splitlines()) == len(report.findings)
    assert json.loads(told["sarif"])["version"] == "2.1.0"
