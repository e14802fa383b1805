"""Bad files are only bad for themselves.

One commit holds every kind of bad file that we know, next to one that is well, and comes through
git into a real gateway: the one that is well is served, each of the others is served too, or has a
diagnostic that says why not, or is no document and so is passed over. What each does on its own is
in tests/core; here it is all at once, in the time and the memory of as many plain files.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess
from support.hostile_host import (
    Asked,
    HostileHost,
    Said,
    Script,
    commit_of,
    id_of,
    pack_head,
    packed,
    packed_zeros,
    sealed,
    serving,
    tree_of,
)
from support.process_watch import status_kibibytes

MEBIBYTE: Final = 1024 * 1024
LONG: Final = 2 * MEBIBYTE
GIGABYTE: Final = 1024
"""In MiB."""

SERVED: Final = ""
PASSED_OVER: Final = None

HEAD: Final = b"export: true\ntype: Note\n"
CPU_FACTOR: Final = 3
CPU_SECONDS: Final = 1.0
KIBIBYTES: Final = 100 * 1024
PULL_SECONDS: Final = 120.0

Bad = Mapping[str, tuple[bytes, str | None]]
"""The content of each file, and what its diagnostic says; or `SERVED`, or `PASSED_OVER`."""


def block(fields: bytes, body: bytes = b"Words.\n") -> bytes:
    """Return a file that opts in, with these fields."""
    return b"---\n" + HEAD + fields + b"\n---\n" + body


def body(unit: bytes, start: bytes = b"") -> bytes:
    """Return a file whose body is long and of one kind."""
    return block(b"", start + unit * (LONG // len(unit)))


def lines(line: bytes, count: int) -> bytes:
    """Return lines, each with its number in the place of the `%d`."""
    return b"\n".join(line % number for number in range(count))


def aliases(levels: int) -> bytes:
    """Return ten aliases of ten aliases of ten, and so on."""
    tens = (
        b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, levels)
    )
    return b"a0: &a0 [x]\n" + b"\n".join(tens)


def anchors(count: int) -> bytes:
    """Return values that have names, which nothing uses."""
    return b"\n".join(b"a%d: &a%d x" % (number, number) for number in range(count))


def merges(levels: int) -> bytes:
    """Return mappings that merge the one before them twice."""
    twice = (b"a%d: &a%d {<<: [*a%d, *a%d]}" % (n, n, n - 1, n - 1) for n in range(1, levels))
    return b"a0: &a0 {x: y}\n" + b"\n".join(twice)


def in_utf(encoding: str) -> bytes:
    return block(b"").decode().encode(encoding)


FRONTMATTER: Final[Bad] = {
    "alias-bomb": (block(aliases(30)), "more than 10000 values, aliases expanded"),
    "merge-bomb": (block(merges(25)), "more than 10000 values|deeper than 32 levels"),
    "itself": (block(b"a: &a [*a]"), "deeper than 32 levels"),
    "megabyte": (block(b"a: " + b"x" * MEBIBYTE), "longer than 64 KiB"),
    "many-keys": (block(lines(b"k%d: x", 100_000)), "longer than 64 KiB"),
    "many-values": (block(b"a: [" + b"1," * 30_000 + b"]"), "more than 10000 values"),
    "many-anchors": (block(anchors(4_000)), SERVED),
    "brackets": (block(b"a: " + b"[" * 500 + b"]" * 500), "."),
    "many-brackets": (block(b"a: " + b"[" * 30_000 + b"]" * 30_000), "."),
    "open-brackets": (block(b"a: " + b"[" * 60_000), "."),
    "braces": (block(b"a: " + b"{a: " * 15_000), "."),
    "dashes-in-dashes": (block(b"a:\n" + b"- " * 30_000 + b"x"), "."),
    "questions": (block(b"? " * 30_000 + b"x"), "."),
    "nul": (block(b"a: x\0y"), "#x00 is not allowed"),
    "control": (block(b"a: x\x01y"), "#x01 is not allowed"),
    "utf-16-be": (b"\xfe\xff" + in_utf("utf-16-be"), "not UTF-8"),
    "utf-16-le": (b"\xff\xfe" + in_utf("utf-16-le"), "not UTF-8"),
    "utf-32": (in_utf("utf-32"), "not UTF-8"),
    "utf-16-bare": (in_utf("utf-16-le"), PASSED_OVER),
    "utf-32-bare": (in_utf("utf-32-be"), PASSED_OVER),
    "latin-1": (block(b"title: caf\xe9"), "not UTF-8"),
    "surrogate": (block(b"title: \xed\xa0\x80"), "not UTF-8"),
    "surrogate-escape": (block(b'title: "\\ud800"'), "."),
    "surrogate-pair": (block(b'title: "\\ud83d\\ude00"'), "."),
    "overlong": (block(b"title: \xc0\xaf"), "not UTF-8"),
    "endless": (b"---\n" + HEAD + lines(b"k%d: x", 100_000), "no second line '---'"),
    "integer": (block(b"n: 0x" + b"f" * 60_000), SERVED),
    "float": (block(b"n: 1e999999\nm: -.inf\no: .nan"), SERVED),
    "sexagesimal": (block(b"n: " + b":".join([b"59"] * 10_000)), SERVED),
    "timestamp": (block(b"n: 9999-99-99T99:99:99.9+99:99"), SERVED),
    "python": (block(b"a: !!python/object/apply:os.system [exit 1]"), "tag .* is not allowed"),
    "own-tag": (block(b"a: !<" + b"x" * 9_000 + b"> y"), "tag .* is not allowed"),
    "binary": (block(b"a: !!binary ====\nb: !!set {x, y}\nc: !!timestamp no"), SERVED),
    "twice": (block(b"a:\n  b:\n    c: 1\n    c: 2"), "'c' stands twice"),
    "merge-of-text": (block(b"<<: text"), "merges mappings only"),
    "key-of-list": (block(b"? [a, b]\n: c"), "a key must be text"),
    "lone-quote": (block(b'a: "' + b"\\" * 60_000), "."),
    "colons": (block(b"a: " + b": " * 30_000), "."),
    "tabs": (block(b"\t" * 60_000 + b"a: b"), "."),
    "conflict": (block(b"<<<<<<< ours\na: b\n=======\na: c\n>>>>>>> theirs"), "merge conflict"),
    "cr": (block(b"a: b", b"Words.\n").replace(b"\n", b"\r"), SERVED),
    "bom-in-the-middle": (block(b"a: b\n\xef\xbb\xbfc: d"), "."),
    "separators": (block("a: b\u2028c\u0085d".encode()), SERVED),
}
"""Small files, and their faults; a point is any sentence."""

BODIES: Final[Bad] = {
    **{
        f"line-of-{name}": (body(unit), SERVED)
        for name, unit in {
            "dashes": b"-",
            "backticks": b"`",
            "tildes": b"~",
            "brackets": b"[",
            "stars": b"* ",
            "colons": b":",
            "quotes": b'"',
            "spaces": b" x ",
            "comments": b"<!--",
            "nuls": b"\0",
            "equals": b"=",
            "underscores": b"_ ",
            "arrows": b"-->",
            "hashes": b"#",
        }.items()
    },
    **{
        f"lines-of-{name}": (body(unit), SERVED)
        for name, unit in {
            "headings": b"# h\n",
            "rules": b"---\n",
            "fences": b"```\n",
            "open-fences": b"```a\n",
            "nearly-rules": b"- - - x\n\n",
            "underlined": b"a\n=\n",
            "cr": b"\r",
            "crlf": b"x\r\n",
            "nearly-fences": b"``` `\n",
            "indented": b"   ```` a\n",
            "comments": b"<!-- x\n",
        }.items()
    },
    "blank-head": (b" " * LONG + block(b""), PASSED_OVER),
    "long-fence": (b"-" * LONG + b"\n" + HEAD + b"---\n", "line 1 must be '---'"),
    "blank-fence": (b"---" + b" " * LONG + b"x\n" + HEAD + b"---\n", "line 1 must be '---'"),
    "nearly-export": (b"export" + b" " * LONG + b"x", PASSED_OVER),
    "export-alone": (b"export: true" + b"\t" * LONG, "there is no frontmatter"),
    "nearly-fence": (b"+ " * (LONG // 2) + b"\nexport: true\n", "there is no frontmatter"),
    "too-large": (body(b"x") * 3, "a document has 4 MiB at most"),
}
"""Long ones, which cost time if anything is read more than once."""

WELL: Final = block(b"id: well")
BIG: Final = "1073741824 bytes; a document has 4 MiB at most"
BAD: Final[Bad] = {**FRONTMATTER, **BODIES}


def of_files(files: Mapping[str, bytes], more: Mapping[str, tuple[str, bytes]]) -> Script:
    """Return a host of a commit of these files, and of more whose blobs are packed already."""
    ids = {name: id_of("blob", content) for name, content in files.items()}
    ids |= {name: blob for name, (blob, _) in more.items()}
    tree = tree_of(("100644", f"{name}.md".encode(), ids[name]) for name in sorted(ids))
    commit = commit_of(id_of("tree", tree))
    objects = [packed("commit", commit), packed("tree", tree)]
    objects += [packed("blob", content) for content in files.values()]
    objects += [raw for _, raw in more.values()]
    return serving(id_of("commit", commit), lambda: sealed([pack_head(len(objects)), *objects]))


def plain(size: int, name: str) -> bytes:
    """Return a plain document of that size."""
    head = block(f"id: {name}".encode(), b"")
    return head + b"Plain words, a line of them, and so on.\n" * (max(size - len(head), 1) // 40)


def cpu_seconds(pid: int) -> float:
    """Return what a process used of the processor; its children, which are git, don't count."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - a line of the kernel's
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def shown() -> dict[str, Script]:
    """What the host has now, under the key `now`; the test writes it."""
    return {"now": of_files({"well": WELL}, {})}


@pytest.fixture
def host(shown: dict[str, Script]) -> Iterator[HostileHost]:
    """A host that has a new commit whenever the test says so."""

    def answer(asked: Asked) -> Said:
        return shown["now"](asked)

    with HostileHost(answer) as host:
        yield host


def pull_seconds(process: GatewayProcess) -> float:
    """Pull what is new, and return what that cost the gateway of the processor."""
    before = cpu_seconds(process.pid)
    answer = process.refresh("acme", timeout=PULL_SECONDS)
    assert answer.status == 200, answer
    return cpu_seconds(process.pid) - before


@pytest.mark.row("D1", "D2", "D3", "D4", "H9")
def test_all_bad_files_at_once_leave_what_is_well_served_and_each_says_what_it_is(
    host: HostileHost, shown: dict[str, Script], gateway: GatewayFactory
) -> None:
    owner = {"url": host.url_of("acme"), "ttl": 3600}
    process = gateway(json.dumps({"owners": {"acme": owner}}))
    process.wait_for_state("acme", "serving")
    files = {"well": WELL, **{name: content for name, (content, _) in BAD.items()}}
    shown["now"] = of_files({name: plain(len(raw), name) for name, raw in files.items()}, {})
    plain_seconds = pull_seconds(process)
    plain_kibibytes = status_kibibytes(process.pid, "VmHWM")
    shown["now"] = of_files(files, {})
    seconds = pull_seconds(process)
    kibibytes = status_kibibytes(process.pid, "VmHWM")
    row = process.status("artifacts=true&diagnostics=true")["owners"]["acme"]
    served = {each["path"].removesuffix(".md") for each in row["artifacts"]}
    items = row["diagnostics"]["items"]
    said = {each["path"].removesuffix(".md"): each["message"] for each in items}
    assert served == {"well", *(name for name, (_, words) in BAD.items() if words == SERVED)}
    expected = {name: words for name, (_, words) in BAD.items() if words}
    assert said.keys() == expected.keys()
    assert {name: said[name] for name in said if not re.search(expected[name], said[name])} == {}
    assert [each["message"] for each in items if "internal" in each["message"]] == []
    assert [line for line in process.log.splitlines() if "Traceback" in line] == []
    assert seconds < CPU_FACTOR * plain_seconds + CPU_SECONDS
    assert kibibytes < plain_kibibytes + KIBIBYTES


@pytest.mark.row("D4", "H9")
def test_a_file_of_a_gigabyte_is_a_diagnostic_and_costs_the_gateway_no_memory(
    host: HostileHost, shown: dict[str, Script], gateway: GatewayFactory
) -> None:
    shown["now"] = of_files({"well": WELL}, {"gigabyte": packed_zeros(GIGABYTE)})
    process = gateway(json.dumps({"owners": {"acme": {"url": host.url_of("acme")}}}))
    row = process.wait_for_state("acme", "serving", PULL_SECONDS)
    (item,) = process.status("diagnostics=true")["owners"]["acme"]["diagnostics"]["items"]
    assert (row["docs_loaded"], item["path"], item["message"]) == (1, "gigabyte.md", BIG)
    assert status_kibibytes(process.pid, "VmHWM") < GIGABYTE * 1024 // 2
