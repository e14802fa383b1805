"""YAML read as text: what an author wrote comes out, and hostile input does no harm (D3)."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from okf_mcp_server.yaml_text import (
    MAX_DEPTH,
    MAX_NODES,
    Text,
    YamlTextError,
    compose_mapping,
    entries,
    frozen,
    is_null,
    is_true,
    line_of,
    to_text,
)


def composed(text: str) -> yaml.MappingNode:
    node = compose_mapping(text)
    assert node is not None
    return node


def read(text: str) -> Text:
    return to_text(composed(text))


def value_of(text: str) -> yaml.Node:
    return entries(composed(text))["a"][1]


def refusal(text: str) -> tuple[str, int | None]:
    with pytest.raises(YamlTextError) as caught:
        compose_mapping(text)
    return caught.value.reason, caught.value.line


def nested_lists(levels: int) -> str:
    """Return a mapping that holds lists, `levels` collections inside one another in all."""
    return "a: " + "[" * (levels - 1) + "]" * (levels - 1)


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("010", "010"),
        ("1.10", "1.10"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-05-01", "2026-05-01"),
        ("2026-05-01 12:00:00Z", "2026-05-01 12:00:00Z"),
        ("2023-02-30", "2023-02-30"),
        (".inf", ".inf"),
        ("1e3", "1e3"),
        ("yes", "yes"),
        ("No", "No"),
        ("=", "="),
        ("'it''s'", "it's"),
        ('"tab\\tnul\\0"', "tab\tnul\0"),
        ("|\n  one\n  two\n", "one\ntwo\n"),
        (">\n  one\n  two\n", "one two\n"),
        ("one\n  two", "one two"),
        ("!!str 010", "010"),
        ("!!int '010'", "010"),
        ("!!binary aGVsbG8=", "aGVsbG8="),
        ("!!timestamp 2026-05-01", "2026-05-01"),
        ("! text", "text"),
        ("~", "~"),
        ("", ""),
    ],
)
def test_a_scalar_is_the_text_that_its_author_wrote(written: str, text: str) -> None:
    assert read(f"a: {written}\n") == {"a": text}


@pytest.mark.row("D3")
def test_lists_and_mappings_hold_text_only_in_the_order_of_the_author() -> None:
    written = "b: [1, {x: 2026-01-01, w: }]\na: {2: true, 1: ~}\nset: !!set {k, j}\n"

    result = read(written)

    assert result == {
        "b": ("1", {"x": "2026-01-01", "w": ""}),
        "a": {"2": "true", "1": "~"},
        "set": {"k": "", "j": ""},
    }
    assert isinstance(result, dict) is False
    assert list(result) == ["b", "a", "set"]


@pytest.mark.row("D3")
def test_what_leaves_the_parser_can_not_be_changed() -> None:
    result = read("a: {b: c}\n")
    with pytest.raises(TypeError):
        result["a"]["b"] = "changed"  # pyright: ignore[reportArgumentType, reportIndexIssue, reportCallIssue]


@pytest.mark.row("D1")
@pytest.mark.parametrize("written", ["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"])
def test_yaml_1_1_reads_these_as_true(written: str) -> None:
    assert is_true(value_of(f"a: {written}"))


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    "written",
    [
        *("false", "no", "off", "~", "null", "1", "y", "Y", "t", "tRUE"),
        *("''", "'true'", "[true]", "!!str"),
        '"true"',
        "!!str true",
        "{true: true}",
        "|\n  true",
        "truely",
        "true true",
    ],
)
def test_nothing_else_is_true(written: str) -> None:
    assert not is_true(value_of(f"a: {written}"))


@pytest.mark.parametrize(
    ("written", "expected"),
    [("", True), ("~", True), ("null", True), ("Null", True), ("''", False), ('"~"', False)],
)
def test_only_what_yaml_reads_as_null_is_null(written: str, expected: bool) -> None:
    assert is_null(value_of(f"a: {written}")) is expected


@pytest.mark.parametrize("text", ["", "# only a comment\n", "words", "- a\n- b\n", "~", "[a: b]"])
def test_a_top_that_is_not_a_mapping_is_none(text: str) -> None:
    assert compose_mapping(text) is None


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    "tag",
    [
        "!local",
        "!!python/object/apply:os.system",
        "!!python/name:os.system",
        "!<tag:yaml.org,2002:python/tuple>",
        "!<tag:example.com,2026:x>",
        "!!unknown",
    ],
)
@pytest.mark.parametrize("place", ["a: {tag} x", "a: [{tag} x]", "{tag} a: x", "a: {tag} {{b: c}}"])
def test_a_custom_tag_is_refused_wherever_it_stands(tag: str, place: str) -> None:
    reason, line = refusal("first: line\n" + place.format(tag=tag) + "\n")
    assert (reason.startswith("the tag "), line) == (True, 2)


def test_a_reason_quotes_the_author_on_one_line_and_briefly() -> None:
    assert refusal("a: !<x%0Ay%1b> z\n") == ("the tag 'x\\ny\\x1b' is not allowed", 1)
    key = "k" * 900
    assert refusal(f"{key}: 1\n{key}: 2\n") == (f"the key '{'k' * 60}…' stands twice", 2)


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", 3),
        ("a: 1\n'a': 1\n", 2),
        ('a: 1\n"\\x61": 1\n', 2),
        ("{a: 1, a: 1}", 1),
        ("x:\n  y:\n    a: 1\n    a: 2\n", 4),
        ("x:\n- {b: 1}\n- {a: 1, a: 2}\n", 3),
        ("'': 1\n'': 2\n", 2),
        ("<<: {b: 1}\n<<: {c: 1}\n", 2),
        ("1: x\n'1': y\n", 2),
    ],
    ids=str,
)
def test_a_key_that_stands_twice_is_refused(text: str, line: int) -> None:
    reason, found = refusal(text)
    assert (reason.endswith("stands twice"), found) == (True, line)


def test_one_key_in_two_mappings_stands_once_in_each() -> None:
    assert read("a: {k: 1}\nb: {k: 2}\nk: 3\n") == {"a": {"k": "1"}, "b": {"k": "2"}, "k": "3"}


@pytest.mark.row("D3")
def test_thirty_two_levels_are_read_and_thirty_three_are_not() -> None:
    deepest: Text = ()
    for _ in range(MAX_DEPTH - 2):
        deepest = (deepest,)
    assert MAX_DEPTH == 32
    assert read(nested_lists(32)) == {"a": deepest}
    assert refusal(nested_lists(33)) == ("nested deeper than 32 levels", 1)


@pytest.mark.row("D3")
@pytest.mark.parametrize("kind", ["block", "flow", "mapping"])
def test_every_kind_of_collection_counts_as_a_level(kind: str) -> None:
    def written(levels: int) -> str:
        if kind == "flow":
            return "{a: " * levels + "x" + "}" * levels
        if kind == "block":
            return "a:\n" + "- " * (levels - 1) + "x"
        return "".join(f"{' ' * depth}a:\n" for depth in range(levels)) + " " * levels + "x"

    assert compose_mapping(written(32)) is not None
    assert refusal(written(33))[0] == "nested deeper than 32 levels"


@pytest.mark.row("D3")
def test_ten_thousand_nodes_are_read_and_one_more_is_not() -> None:
    # The mapping, its key and its list are three nodes.
    assert MAX_NODES == 10_000
    assert compose_mapping(f"a: [{'x,' * 9_997}]") is not None
    assert refusal(f"a: [{'x,' * 9_998}]") == ("more than 10000 values, aliases expanded", 1)


@pytest.mark.row("D3")
def test_an_alias_counts_as_all_that_it_stands_for() -> None:
    # Ten nodes above, a list of nine values is ten nodes, so is each alias of it.
    shared = "s: &s [1,2,3,4,5,6,7,8,9]\n"
    assert compose_mapping(f"{shared}a: [{'*s,' * 998}]\n") is not None
    assert refusal(f"{shared}a: [{'*s,' * 999}]\n")[0].startswith("more than 10000 values")


@pytest.mark.row("D3")
def test_a_bomb_of_aliases_is_refused_without_being_expanded() -> None:
    lists = "".join(f"l{i}: &l{i} [{','.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    maps = "".join(f"m{i}: &m{i} {{a: *m{i - 1}, b: *m{i - 1}}}\n" for i in range(1, 30))
    assert refusal(f"l0: &l0 [x]\n{lists}")[0].startswith("more than 10000 values")
    assert refusal(f"m0: &m0 {{}}\n{maps}")[0].startswith("more than 10000 values")


@pytest.mark.row("D3")
@pytest.mark.parametrize(
    "text",
    ["a: &a [*a]", "a: &a {b: *a}", "&a a: &b [*b, *b]", "a: &a {<<: *a}", "a: &a [[*a], [*a]]"],
)
def test_a_node_that_contains_itself_is_refused(text: str) -> None:
    assert refusal(text)[0] == "nested deeper than 32 levels"


@pytest.mark.row("D3")
@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "{a: ", "[a, ", "!!seq [", "a:\n"])
def test_nesting_without_end_is_refused_and_does_not_crash(opening: str) -> None:
    text = "a:\n" + opening * (65_000 // len(opening))
    assert refusal(text)[0] != ""


@pytest.mark.row("D3")
def test_merge_keys_merge_and_the_nearest_value_wins() -> None:
    text = (
        "x: &x {one: x, two: x}\n"
        "y: &y {two: y, three: y}\n"
        "a: {<<: [*x, *y], three: own}\n"
        "b: {one: own, <<: *x}\n"
        "c: {'<<': text}\n"
    )
    assert read(text) == {
        "x": {"one": "x", "two": "x"},
        "y": {"two": "y", "three": "y"},
        "a": {"three": "own", "one": "x", "two": "x"},
        "b": {"one": "own", "two": "x"},
        "c": {"<<": "text"},
    }


@pytest.mark.row("D3")
@pytest.mark.parametrize("written", ["text", "[a, b]", "", "[{a: b}, text]"])
def test_a_merge_of_what_is_not_a_mapping_is_refused(written: str) -> None:
    assert refusal(f"x: y\n<<: {written}\n")[0] == "'<<' merges mappings only"


@pytest.mark.row("D3")
def test_merges_of_merges_are_bounded_like_all_aliases() -> None:
    chain = "".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}], k{i}: x}}\n" for i in range(1, 25))
    assert refusal(f"m0: &m0 {{k: x}}\n{chain}")[0].startswith("more than 10000 values")


@pytest.mark.parametrize("text", ["[a]: b\n", "{a: b}: c\n", "a: {{ title }}\n", "? [a]\n: b\n"])
def test_a_key_that_is_not_text_is_refused(text: str) -> None:
    assert refusal(text) == ("a key must be text; a value that begins with { needs quotes", 1)


@pytest.mark.row("D4")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: b\nc: d: e\n", 2),
        ("a: b\nc: @d\n", 2),
        ("a: b\nc: `d`\n", 2),
        ("a:\n\tb: c\n", 2),
        ("a: 'b' c'\n", 1),
        ("a: [b\nc: d\n", 1),
        ("a: *b\n", 1),
        ("a: b\n<<<<<<< HEAD\nc: d\n", 2),
        ("a: b\n...\nc: d\n", 3),
        ("a: b\n--- \nc: d\n", 2),
        ("%YAML 1.1\na: b\n", 2),
        ("%FOO bar\n", 1),
        ("a: b\nc: \x00\n", 2),
        ("é: é\nc: \x07\n", 2),
        ("é: é\nb: c\n\x0b", 3),
        ("a: b\n\x0c\n", 2),
        ("a: b\n\x7f\n", 2),
        ("a: b\n\ufffe\n", 2),
        ('a: b\nc: "\\ud800"\n', 2),
        ('a: "\\q"\n', 1),
        ("%YAML 2.0\n--- \na: b\n", 1),
    ],
    ids=repr,
)
def test_what_is_not_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    assert refusal(text)[1] == line


def test_a_document_may_say_where_it_begins_and_ends() -> None:
    assert read("--- {a: b}\n...\n") == {"a": "b"}
    assert read("%YAML 1.1\n--- \na: b\n") == {"a": "b"}


@pytest.mark.row("D4")
def test_a_lone_surrogate_is_a_reason_and_no_traceback() -> None:
    reason, line = refusal("a: \ud800")
    assert ("surrogates not allowed" in reason, line) == (True, None)


@pytest.mark.row("D2")
@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"], ids=ascii)
def test_a_unicode_line_separator_ends_no_line(character: str) -> None:
    text = (
        f"a: one{character}b two\n"
        f"l: [x{character}y, 'x{character}y', \"x{character}y\"]\n"
        f"m: {{k{character}ey: {character}}}\n"
        f"# comment{character}hidden: key\n"
        f"t: |\n  one{character}two\n"
        "last: line\n"
    )
    node = composed(text)
    assert to_text(node) == {
        "a": f"one{character}b two",
        "l": (f"x{character}y",) * 3,
        "m": {f"k{character}ey": character},
        "t": f"one{character}two\n",
        "last": "line",
    }
    assert line_of(entries(node)["last"][0]) == 7
    assert refusal(f"a: x{character}y\nb: @\n")[1] == 2


def test_the_line_of_a_node_is_where_it_begins() -> None:
    found = entries(composed("a: 1\n\n# comment\nb:\n- c\n"))
    assert [(line_of(key), line_of(value)) for key, value in found.values()] == [(1, 1), (4, 5)]


SPELLINGS: Final = [
    *("", "~", "null", "Null", "NULL", "nULL", "<<", "=", "true", "True", "TRUE", "tRue", "false"),
    *("yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF", "y", "n", "oN"),
    *("'yes'", '"~"', "!!bool yes", "!!str yes", "!!null ''", "! yes", "!!str ~", "!!merge x"),
    *("1", "0x1", "1_0", "1:30", "1e3", ".inf", ".nan", "2026-05-01", "2026-05-01 12:00:00Z"),
    *("|\n  yes\n", ">-\n  ~", "[yes, ~]", "[]", "{}", "{on: off}", "&a on", "words and more"),
]


@pytest.mark.row("D3")
@given(st.lists(st.tuples(st.sampled_from(SPELLINGS), st.sampled_from(SPELLINGS)), max_size=4))
@settings(max_examples=150, derandomize=True, database=None, deadline=None)
def test_what_is_no_text_to_yaml_is_none_to_us(pairs: list[tuple[str, str]]) -> None:
    def meanings(node: yaml.Node) -> Iterator[str]:
        name = str(node.tag).rpartition(":")[2]
        yield name if name in {"bool", "null", "merge", "seq", "map"} else "text"
        if isinstance(node, yaml.ScalarNode):
            return
        for child in node.value:
            for each in child if isinstance(node, yaml.MappingNode) else [child]:
                yield from meanings(each)

    text = "".join(
        f"k{n}: {{? {key} : 1}}\nv{n}: {value}\n" for n, (key, value) in enumerate(pairs)
    )
    try:
        theirs = yaml.compose(text, Loader=yaml.CSafeLoader)
        ours = compose_mapping(text)
    except (yaml.YAMLError, YamlTextError):
        return
    assert (ours is None) == (theirs is None) == (not pairs)
    if ours is not None and theirs is not None:
        assert list(meanings(ours)) == list(meanings(theirs))


@pytest.mark.row("D3")
def test_a_text_is_the_same_after_it_was_written_as_json() -> None:
    text = read("a: b\nc: [d, [e], {f: g}]\nh: {i: [], j: {}}\n")
    assert isinstance(text, Mapping)
    for value in text.values():
        written = json.dumps(value, default=dict)
        assert frozen(json.loads(written), {}) == value
