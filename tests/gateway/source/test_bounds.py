"""What a git process may take (P7)."""

import resource
import zlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from okf_mcp_gateway.source.error_class import SourceError
from okf_mcp_gateway.source.git import Git
from okf_mcp_gateway.source.mirror import Mirror
from support.hostile_host import (
    HostileHost,
    commit_of,
    id_of,
    object_head,
    pack_head,
    packed,
    sealed,
    serving,
    tree_of,
)

MEBIBYTE = 1024 * 1024

AddTool = Callable[[str, str], None]
NewMirror = Callable[..., Mirror]


@pytest.mark.row("P7")
def test_git_and_what_it_starts_are_bounded_in_memory_and_in_files_and_leave_no_core(
    git: Git, add_tool: AddTool
) -> None:
    add_tool("limits", "sh -c 'cat /proc/self/limits'")
    lines = git.run(["limits"]).decode().splitlines()
    limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    assert limits["Max data size"] == [str(1024 * MEBIBYTE)] * 2
    assert limits["Max file size"] == [str(4096 * MEBIBYTE)] * 2
    assert limits["Max core file size"] == ["0", "0"]


@pytest.mark.row("P7")
def test_a_lower_bound_that_is_there_stays(git: Git, add_tool: AddTool) -> None:
    add_tool("limits", "cat /proc/self/limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEBIBYTE, before[1]))
    try:
        lines = git.run(["limits"]).decode().splitlines()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (line,) = (line for line in lines if line.startswith("Max file size"))
    assert line[26:].split()[:2] == [str(MEBIBYTE), str(4096 * MEBIBYTE)]


def size_of(number: int) -> bytes:
    """Return a size as the head of a delta holds it."""
    digits = bytearray()
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def delta_bomb() -> Iterator[bytes]:
    """Yield a pack of a kilobyte in which one object is 8 GiB: a mebibyte, 8,192 times."""
    base = bytes(MEBIBYTE)
    copies = bytes([0x80 | 0x40, 0x10]) * 8192
    delta = size_of(MEBIBYTE) + size_of(8192 * MEBIBYTE) + copies
    tree = tree_of([("100644", b"a.md", "12" * 20)])
    objects: Sequence[bytes] = [
        packed("blob", base),
        object_head(7, len(delta)) + bytes.fromhex(id_of("blob", base)) + zlib.compress(delta),
        packed("tree", tree),
        packed("commit", commit_of(id_of("tree", tree))),
    ]
    return sealed([pack_head(len(objects)), *objects])


@pytest.mark.row("P7")
def test_an_object_that_no_memory_holds_is_a_sentence(new_mirror: NewMirror) -> None:
    with HostileHost(serving("12" * 20, delta_bomb)) as host:
        mirror = new_mirror(host.url_of("acme"))
        with pytest.raises(SourceError, match="Out of memory"):
            mirror.clone(mirror.probe())
