"""YAML read as text: the one YAML reader of the project.

The C loader composes the tree, and nothing is ever constructed from it: a scalar is the text that
its author wrote (`010`, `1.10`, `12:30` and `2026-05-01` stay as written), whatever YAML's types
would make of it. Input is hostile until it has passed `compose_mapping`, which bounds its depth and
size, refuses custom tags and refuses keys that stand twice (D3).
"""

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import yaml
from yaml.reader import ReaderError

from okf_mcp_server.errors import OkfError
from okf_mcp_server.yaml_mistakes import find_mistake

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SharedT = TypeVar("SharedT", bound="str | tuple[object, ...]")

Text: TypeAlias = "str | Sequence[Text] | Mapping[str, Text]"
"""What leaves this module: text, and lists and mappings of text."""

MAX_DEPTH: Final = 32
"""How many collections may stand inside one another."""

MAX_NODES: Final = 10_000
"""How many nodes a tree may have, each alias counted as all that it stands for."""

_TAG: Final = "tag:yaml.org,2002:"
_NULL: Final = _TAG + "null"
_BOOL: Final = _TAG + "bool"
_MERGE: Final = _TAG + "merge"
_STR: Final = _TAG + "str"
_SEQ: Final = _TAG + "seq"
_MAP: Final = _TAG + "map"
_KNOWN_TAGS: Final = frozenset(
    _TAG + name
    for name in (
        *("binary", "bool", "float", "int", "map", "merge", "null"),
        *("omap", "pairs", "seq", "set", "str", "timestamp", "value"),
    )
)
_TRUE: Final = frozenset({"true", "yes", "on"})
_WORDS: Final = MappingProxyType(
    {
        **dict.fromkeys(("", "~", "null", "Null", "NULL"), _NULL),
        **{
            spelling: _BOOL
            for word in ("true", "false", "yes", "no", "on", "off")
            for spelling in (word, word.capitalize(), word.upper())
        },
        "<<": _MERGE,
    }
)
"""What YAML 1.1 takes for something else than text, where it stands without quotes. Its numbers and
dates aren't here: to us they are text."""

_LINE_ENDS: Final = "\x85\u2028\u2029"
"""YAML 1.1 ends a line at these three, we don't (D2): the parser sees other characters instead."""

_STAND_INS: Final = range(0x10FFFF, 0xFFFF, -1)
"""Those that may be seen, the private ones first: a text never holds all of them."""

_SHARED_CHARACTERS: Final = 24
"""How long a text may be to be looked for in other files: a longer one is seldom there twice."""

_SHOWN_CHARACTERS: Final = 60
"""How much of the author's text a reason quotes."""

Entries: TypeAlias = dict[str, tuple[yaml.ScalarNode, yaml.Node]]
"""A mapping's key, as text, to its key node and its value node, in the author's order."""


class YamlTextError(OkfError):
    """The text is not YAML that we read; `line` counts from 1 and is None where YAML names none."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class _TextLoader(yaml.CSafeLoader):
    """The C loader, without its search for numbers and dates: half of what it takes to compose."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: object) -> str:
        """Return the tag of a node that has none written."""
        if kind is not yaml.ScalarNode:
            return _MAP if kind is yaml.MappingNode else _SEQ
        return _WORDS.get(value, _STR) if cast("tuple[bool, bool]", implicit)[0] else _STR

    def descend_resolver(self, current_node: object, current_index: object) -> None:
        """Do nothing: no tag depends on where a node stands."""

    def ascend_resolver(self) -> None:
        """Do nothing, as above."""


def compose_mapping(text: str, *, unique_keys: bool = True) -> yaml.MappingNode | None:
    """Read one YAML document whose top is a mapping; None if the top is anything else.

    Raises `YamlTextError` for whatever can't be read: a syntax error, a custom tag, a key that
    isn't text, or stands twice (unless the caller looks for those, by `repeated_keys`), more than
    `MAX_DEPTH` levels or `MAX_NODES` nodes.
    """
    stand_ins = _stand_ins(text)
    source = text.translate(stand_ins) if stand_ins else text
    try:
        root = yaml.compose(source, Loader=_TextLoader)
    except ReaderError as error:
        line = source.encode()[: error.position].count(b"\n") + 1
        raise YamlTextError(f"the character #x{error.character:02x} is not allowed", line) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlTextError(" ".join(str(error).split())) from None
    if not isinstance(root, yaml.MappingNode):
        return None
    _check(root, depth=1, budget=MAX_NODES, unique_keys=unique_keys)
    if stand_ins:
        _restore(root, {stand_in: character for character, stand_in in stand_ins.items()})
    return root


def entries(node: yaml.MappingNode) -> Entries:
    """Return the entries of a checked mapping, with merge keys (`<<`) merged in.

    A key that the mapping has itself wins over a merged one, an earlier merge over a later one.
    """
    own: Entries = {}
    merged: Entries = {}
    for key, value in node.value:
        if key.tag != _MERGE:
            own[key.value] = (key, value)
            continue
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            for name, entry in entries(source).items():
                merged.setdefault(name, entry)
    for name, entry in merged.items():
        own.setdefault(name, entry)
    return own


def repeated_keys(node: yaml.MappingNode) -> list[yaml.ScalarNode]:
    """Return the keys of a mapping that repeat an earlier one."""
    if len({key.value for key, _ in node.value}) == len(node.value):
        return []
    seen: set[str] = set()
    repeated: list[yaml.ScalarNode] = []
    for key, _ in node.value:
        if key.value in seen:
            repeated.append(key)
        seen.add(key.value)
    return repeated


def to_text(node: yaml.Node) -> Text:
    """Return a checked node as text, a tuple, or a read-only mapping of text."""
    if isinstance(node, yaml.ScalarNode):
        text = str(node.value)
        return shared(text) if len(text) <= _SHARED_CHARACTERS else text
    if isinstance(node, yaml.MappingNode):
        return MappingProxyType({key: to_text(value) for key, (_, value) in entries(node).items()})
    return tuple(map(to_text, node.value))


def frozen(value: object, texts: dict[str, str]) -> Text:
    """Return what `to_text` made, after it was written as JSON and read again.

    Equal texts are one object, as an alias was: `texts` has those that were there before.
    """
    if isinstance(value, str):
        return texts.setdefault(value, value)
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return MappingProxyType({key: frozen(each, texts) for key, each in pairs})
    return tuple([frozen(each, texts) for each in cast("list[object]", value)])


def shared(value: SharedT) -> SharedT:
    """Return the first one that was equal to this short value, if that isn't long ago.

    For what many files have alike: their keys, the lines of those, types, tags, names.
    """
    return cast("SharedT", _first_like(value))


@lru_cache(maxsize=1024)
def _first_like(value: object) -> object:
    return value


def is_true(node: yaml.Node) -> bool:
    """Say whether YAML 1.1 reads this node as the boolean true (`true`, `yes`, `on`)."""
    return node.tag == _BOOL and str(node.value).lower() in _TRUE


def is_null(node: yaml.Node) -> bool:
    """Say whether YAML reads this node as no value at all (nothing, `~`, `null`)."""
    return node.tag == _NULL


def line_of(node: yaml.Node) -> int:
    """Return the line on which a node begins, counted from 1."""
    return node.start_mark.line + 1


def _stand_ins(text: str) -> dict[int, int]:
    """Return what the parser sees for each of `_LINE_ENDS` in a text: what that doesn't hold."""
    found = [ord(character) for character in _LINE_ENDS if character in text]
    if not found:
        return {}
    held = set(text)
    return dict(zip(found, (each for each in _STAND_INS if chr(each) not in held), strict=False))


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> YamlTextError:
    reason = error.problem or error.context or "this is not YAML"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return YamlTextError(reason)
    mistake = find_mistake(text, mark.line + 1)
    if mistake is None:
        return YamlTextError(reason, mark.line + 1)
    return YamlTextError(f"{mistake.advice} ({reason})", mistake.line)


def _check(node: yaml.Node, *, depth: int, budget: int, unique_keys: bool) -> int:
    """Check a node and all below it; return how much of `budget` is left.

    A node that contains itself ends at `MAX_DEPTH`.
    """
    budget -= 1
    if budget < 0:
        raise YamlTextError(f"more than {MAX_NODES} values, aliases expanded", line_of(node))
    if node.tag not in _KNOWN_TAGS:
        raise YamlTextError(f"the tag {_shown(node.tag)} is not allowed", line_of(node))
    if isinstance(node, yaml.ScalarNode):
        return budget
    if depth > MAX_DEPTH:
        raise YamlTextError(f"nested deeper than {MAX_DEPTH} levels", line_of(node))
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, unique_keys=unique_keys)
        children = [child for entry in node.value for child in entry]
    else:
        children = node.value
    for child in children:
        if type(child) is yaml.ScalarNode and child.tag == _STR and budget > 0:
            budget -= 1  # most are such: no call is made for them
            continue
        budget = _check(child, depth=depth + 1, budget=budget, unique_keys=unique_keys)
    return budget


def _check_keys(node: yaml.MappingNode, *, unique_keys: bool) -> None:
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlTextError(
                "a key must be text; a value that begins with { needs quotes", line_of(key)
            )
        if key.tag == _MERGE:
            _check_merge(value)
    for key in repeated_keys(node) if unique_keys else ():
        raise YamlTextError(f"the key {_shown(key.value)} stands twice", line_of(key))


def _check_merge(value: yaml.Node) -> None:
    sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(source, yaml.MappingNode) for source in sources):
        raise YamlTextError("'<<' merges mappings only", line_of(value))


def _shown(text: str) -> str:
    """Return the author's text as a reason may quote it: short, on one line, without controls."""
    is_long = len(text) > _SHOWN_CHARACTERS
    return repr(text[:_SHOWN_CHARACTERS] + "…" if is_long else text)


def _restore(node: yaml.Node, stood_for: "Mapping[int, int]") -> None:
    """Put the characters back for which others stood in, in a checked node and all below it."""
    if isinstance(node, yaml.ScalarNode):
        node.value = node.value.translate(stood_for)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _restore(child, stood_for)
    else:
        for key, value in node.value:
            _restore(key, stood_for)
            _restore(value, stood_for)
