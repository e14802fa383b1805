"""git can't be turned against us.

One gateway has an owner for each thing that a hostile host or repository may do, next to one that
is well. Each hostile owner ends as a sentence, or is served without what was hostile; none runs a
command, makes git ask another host, fills the memory, or keeps the owner that is well from being
served. That neither url nor ref becomes an option or a command, and what is planted in the
configuration of a source or of a copy, is in tests/gateway/source/test_mirror.py; transports and
redirects are in test_git.py beside it, names of files and lost objects in test_commit_tree.py.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from support.gateway_process import GatewayFactory, GatewayProcess, wait_until
from support.git_http import GitHttpServerFactory
from support.hostile_host import (
    FLUSH,
    Asked,
    HostileHost,
    Kind,
    Said,
    Script,
    commit_of,
    fetch_answer,
    greeting,
    id_of,
    object_head,
    pack_head,
    pack_of,
    packed,
    packed_zeros,
    packet,
    ref_line,
    sealed,
    serving,
    tree_of,
)
from support.process_watch import ProcessWatch, status_kibibytes
from support.repositories import Repository

MEBIBYTE: Final = 1024 * 1024
GIT_SECONDS: Final = "5"
SETTLE_SECONDS: Final = 60.0
PACE_SECONDS: Final = 0.05
LARGE_MEBIBYTES: Final = 64
GIT_KIBIBYTES: Final = 32 * 1024
"""What a git process may have of memory; it needs a tenth of it."""

GATEWAY_KIBIBYTES: Final = 600 * 1024
"""What the gateway may have, whatever its owners hold; it needs half of it."""

WELL: Final = b"---\nexport: true\ntype: Note\nid: well\n---\nWell.\n"
SECRET_WORDS: Final = b"words of a host that is not for clients"

Objects = Sequence[tuple[Kind, bytes]]
Entries = Sequence[tuple[str, bytes, str]]


def document(document_id: str) -> bytes:
    """Return a file that opts in."""
    return f"---\nexport: true\ntype: Note\nid: {document_id}\n---\nWords.\n".encode()


def of_tree(entries: Entries, objects: Objects = ()) -> Script:
    """Return the script of a host whose tip is a commit of such a tree, with the well document."""
    tree = tree_of([*entries, ("100644", b"well.md", id_of("blob", WELL))])
    commit = commit_of(id_of("tree", tree))
    whole: Objects = [*objects, ("blob", WELL), ("tree", tree), ("commit", commit)]
    return serving(id_of("commit", commit), lambda: [pack_of(whole)])


def nested(levels: int, width: int, leaf: tuple[str, bytes, str]) -> tuple[str, Objects]:
    """Return the id and the trees of folders of `width` names, all alike, so many levels deep."""
    objects: list[tuple[Kind, bytes]] = []
    entries: Entries = [leaf]
    for _ in range(levels):
        tree = tree_of(entries)
        objects.append(("tree", tree))
        entries = [("40000", b"%d" % number, id_of("tree", tree)) for number in range(width)]
    return entries[0][2], objects


def many_in_few(name: bytes) -> Script:
    """Return a commit of a few kilobytes in which a million files have that name."""
    tree, objects = nested(7, 10, ("100644", name, id_of("blob", WELL)))
    return of_tree([("40000", b"more", tree)], objects)


def many_megabytes() -> Script:
    """Return a commit of a few kilobytes in which Markdown is 1.2 GiB."""
    content = bytes(4 * MEBIBYTE)
    blob = id_of("blob", content)
    files = [("100644", b"a%03d.md" % number, blob) for number in range(300)]
    return of_tree(files, [("blob", content)])


def deep() -> Script:
    """Return folders in one another, 10,000 of them."""
    tree, objects = nested(10_000, 1, ("100644", b"deep.md", id_of("blob", document("deep"))))
    return of_tree([("40000", b"deep", tree)], [*objects, ("blob", document("deep"))])


def large_blob() -> Script:
    """Return 64 MiB in 70 kB, in a file that is too large for a document."""
    blob, raw = packed_zeros(LARGE_MEBIBYTES)
    tree = tree_of([("100644", b"big.md", blob), ("100644", b"well.md", id_of("blob", WELL))])
    commit = commit_of(id_of("tree", tree))
    objects = [packed("blob", WELL), packed("tree", tree), packed("commit", commit), raw]
    return serving(id_of("commit", commit), lambda: sealed([pack_head(len(objects)), *objects]))


def odd_names() -> Script:
    """Return names that no checkout bears: they are names of files, and nothing more."""
    names = {
        "newline": b"new\nline.md",
        "control": b"a\x1b[31m\x07.md",
        "bytes": b"\xff\xfe.md",
        "long": b"x" * 4093 + b".md",
        "option": b"--upload-pack=touch x.md",
        "absolute": b"/etc/absolute.md",
        "slash": b"a/b.md",
        "up": b"../../up.md",
        "git": b".git.md",
        "colon": b":(top)x.md",
        "backslash": b"..\\..\\x.md",
    }
    blobs = {key: document(key) for key in (*names, "first", "second", "dots", "inside")}
    ids = {key: id_of("blob", blob) for key, blob in blobs.items()}
    dots = tree_of([("100644", b"dots.md", ids["dots"])])
    inside = tree_of([("100644", b"inside.md", ids["inside"])])
    entries = [
        *(("100644", name, ids[key]) for key, name in names.items()),
        *(("100644", b"twice.md", ids[key]) for key in ("first", "second")),
        ("40000", b"..", id_of("tree", dots)),
        ("40000", b".git", id_of("tree", inside)),
        *(("120000", b"link.md", ids["first"]), ("160000", b"module.md", "12" * 20)),
    ]
    objects: list[tuple[Kind, bytes]] = [("blob", blob) for blob in blobs.values()]
    return of_tree(entries, [*objects, ("tree", dots), ("tree", inside)])


def nameless() -> Script:
    return of_tree([("100644", b"", id_of("blob", WELL))])


def wide() -> Script:
    """Return a folder of 100,000 files, one of which is a document."""
    blob = id_of("blob", b"")
    tree = tree_of(("100644", b"%06d.txt" % number, blob) for number in range(100_000))
    return of_tree([("40000", b"wide", id_of("tree", tree))], [("blob", b""), ("tree", tree)])


def of_objects(tip: str, objects: Objects) -> Script:
    return serving(tip, lambda: [pack_of(objects)])


def another_object() -> Script:
    """Send a commit, but not the one that is asked for."""
    tree = tree_of([])
    return of_objects("12" * 20, [("commit", commit_of(id_of("tree", tree))), ("tree", tree)])


def no_tree() -> Script:
    commit = commit_of("12" * 20)
    return of_objects(id_of("commit", commit), [("commit", commit)])


def no_blob() -> Script:
    return of_tree([("100644", b"lost.md", "12" * 20)])


def no_commit() -> Script:
    return of_objects(id_of("blob", WELL), [("blob", WELL)])


def tags_of_tags() -> Script:
    """Return 10,000 tags, each of the one before; they end at a commit that isn't there."""
    objects: list[tuple[Kind, bytes]] = []
    target, kind = "12" * 20, "commit"
    for number in range(10_000):
        words = f"object {target}\ntype {kind}\ntag t{number}\ntagger A <a@example.com> 1 +0000\n\n"
        objects.append(("tag", words.encode()))
        target, kind = id_of(*objects[-1]), "tag"
    return of_objects(target, objects)


def endless_refs(over: Event) -> Script:
    def lines() -> Iterator[bytes]:
        number = 0
        while not over.wait(PACE_SECONDS):
            number += 1
            yield b"".join(ref_line("12" * 20, f"refs/heads/{number}/{each}") for each in range(99))

    return lambda asked: Said([greeting()] if asked.step == "greet" else lines())


def endless_pack(over: Event) -> Script:
    def pieces() -> Iterator[bytes]:
        yield pack_head(1) + object_head(3, 1 << 40)
        packer = zlib.compressobj(0)
        while not over.wait(PACE_SECONDS):
            yield packer.compress(os.urandom(MEBIBYTE // 4))

    return serving("12" * 20, pieces)


def false_size() -> Script:
    """Send an object that says that it is 100 GB large."""
    raw = object_head(2, 100 * 1024 * MEBIBYTE) + zlib.compress(b"x")
    return serving("12" * 20, lambda: sealed([pack_head(1), raw]))


def elsewhere(url: str) -> Script:
    """Offer what git may fetch from somewhere else: a bundle, and packs by their URLs."""
    words = [b"version 2\n", b"ls-refs=unborn\n", b"fetch=shallow packfile-uris filter\n"]
    words += [b"bundle-uri\n", b"object-format=sha1\n"]
    welcome = packet(b"# service=git-upload-pack\n") + FLUSH + b"".join(map(packet, words)) + FLUSH
    commit = "12" * 20

    def answer(asked: Asked) -> Said:
        if asked.step == "greet":
            return Said([welcome])
        if asked.step == "refs":
            return Said([ref_line(commit) + FLUSH])
        start = b"".join(fetch_answer(asked, commit, [])).partition(packet(b"packfile\n"))[0]
        uri = packet(b"packfile-uris\n") + packet(f"{commit} {url}\n".encode()) + b"0001"
        return Said([start + uri + packet(b"packfile\n") + FLUSH])

    return answer


def redirected(url: str) -> Script:
    return lambda _: Said([], 302, [("Location", url)])


FAILING: Final[Mapping[str, tuple[Callable[[], Script], str]]] = {
    "no-tree": (no_tree, "bad tree object"),
    "no-blob": (no_blob, "missing blob object"),
    "no-commit": (no_commit, "did not send all necessary objects"),
    "another-object": (another_object, "bad object"),
    "tags-of-tags": (tags_of_tags, "bad object"),
    "false-size": (false_size, "Out of memory"),
    "nameless": (nameless, "empty filename in tree entry"),
    "many-files": (lambda: many_in_few(b"a.md"), "more than 250000 Markdown files; name the"),
    "many-megabytes": (many_megabytes, "more than 1024 MiB of Markdown; name the folders"),
}
"""What ends as a sentence, and words of it."""

SERVED: Final[Mapping[str, Callable[[], Script]]] = {
    "odd-names": odd_names,
    "wide": wide,
    "deep": deep,
    "large-blob": large_blob,
}
"""What is served, but for what is hostile in it."""

ODD_PATHS: Final = {
    *("--upload-pack=touch x.md", "..\\..\\x.md", ".git.md", ".git/inside.md", ":(top)x.md"),
    *("a\x1b[31m\x07.md", "a/b.md", "new\nline.md", "twice.md", "well.md", "x" * 4093 + ".md"),
}
"""The names of `odd_names` under which a document is served."""

REFUSED_PATHS: Final = {"../../up.md", "../dots.md", "/etc/absolute.md", r"\xff\xfe.md"}
"""Those under which none is, as a diagnostic shows them."""


@pytest.fixture
def over() -> Iterator[Event]:
    """Set when the test ends: what is endless ends, too."""
    event = Event()
    yield event
    event.set()


@pytest.fixture
def canary() -> Iterator[HostileHost]:
    """A host that nobody has any business with."""
    with HostileHost(lambda _: Said([SECRET_WORDS], 404, [("Content-Type", "text/plain")])) as host:
        yield host


def registry(urls: Mapping[str, str]) -> str:
    return json.dumps({"owners": {name: {"url": url, "ttl": 0} for name, url in urls.items()}})


def paths_of(row: dict[str, Any]) -> set[str]:
    return {each["path"] for each in row["artifacts"]}


def diagnosed(row: dict[str, Any]) -> set[str]:
    return {each["path"] for each in row["diagnostics"]["items"]}


def settled(process: GatewayProcess) -> dict[str, str] | None:
    """Return the states, once every owner has one and those that are to be served are."""
    states = {name: row["state"] for name, row in process.status()["owners"].items()}
    is_served = all(states[name] == "serving" for name in (*SERVED, "well"))
    return states if is_served and "loading" not in states.values() else None


@pytest.mark.row("P4", "P7", "D4", "D10", "H8")
def test_what_hostile_hosts_do_ends_as_a_sentence_and_the_owner_that_is_well_is_served(
    published: Repository,
    gateway: GatewayFactory,
    canary: HostileHost,
    over: Event,
    tmp_path: Path,
) -> None:
    endless = {"endless-refs": endless_refs(over), "endless-pack": endless_pack(over)}
    strays = {
        "elsewhere": elsewhere(canary.url_of("pack")),
        "to-file": redirected(f"{published.url}/info/refs"),
        "to-ftp": redirected(f"ftp://{canary.authority}/x.git/info/refs"),
        "within": redirected(canary.url_of("latest/meta")),
    }
    scripts = {
        **{name: make() for name, (make, _) in FAILING.items()},
        **{name: make() for name, make in SERVED.items()},
        **strays,
    }
    failing = {*FAILING, *endless, *strays}
    expected = {**dict.fromkeys(failing, "failed"), **dict.fromkeys((*SERVED, "well"), "serving")}
    with (
        HostileHost(lambda asked: scripts[asked.name](asked)) as host,
        HostileHost(lambda asked: endless[asked.name](asked), host="127.0.0.2") as endless_host,
    ):
        urls = {
            "well": published.url,
            **{name: host.url_of(name) for name in scripts},
            **{name: endless_host.url_of(name) for name in endless},
        }
        process = gateway(registry(urls), environment={"OKF_GATEWAY_GIT_TIMEOUT": GIT_SECONDS})
        with ProcessWatch(process.pid) as watch:
            states = wait_until(lambda: settled(process), SETTLE_SECONDS, interval=0.2)
        assert states == expected
        published.document("b.md", id="b")
        commit = published.publish()
        assert process.refresh("well").json["commit"] == commit
        answer = process.get("/status?artifacts=true&diagnostics=true")
        gateway_kibibytes = status_kibibytes(process.pid, "VmHWM")
        over.set()
        assert process.stop() == 0
    rows = answer.json["owners"]
    sentences = {name: rows[name]["error"]["message"] for name in failing}
    assert {name for name, (_, words) in FAILING.items() if words not in sentences[name]} == set()
    for private in (str(tmp_path), host.authority, endless_host.authority, SECRET_WORDS.decode()):
        assert private not in answer.text
        assert private not in process.log
    assert {name: rows[name]["docs_loaded"] for name in ("wide", "deep")} == {"wide": 1, "deep": 2}
    assert (paths_of(rows["odd-names"]), diagnosed(rows["odd-names"])) == (ODD_PATHS, REFUSED_PATHS)
    assert (paths_of(rows["large-blob"]), diagnosed(rows["large-blob"])) == (
        {"well.md"},
        {"big.md"},
    )
    # The address that a host sends git to is asked, as any client of it could, and not quoted.
    assert {asked.name for asked in canary.asked} == {"latest"}
    assert watch.peak_kibibytes["git"] < GIT_KIBIBYTES
    assert gateway_kibibytes < GATEWAY_KIBIBYTES


COMMANDS: Final = """\
[core]
	fsmonitor = {evil}
	hooksPath = {hooks}
	sshCommand = {evil}
	askPass = {evil}
	alternateRefsCommand = {evil}
[credential]
	helper = !{evil}
[filter "evil"]
	smudge = {evil}
	clean = {evil}
	process = {evil}
	required = true
[uploadpack]
	packObjectsHook = {evil}
[gc]
	recentObjectsHook = {evil}
[include]
	path = {included}
"""
"""A configuration by which git would run a command."""

ADDRESSES: Final = """\
[url "{other}/"]
	insteadOf = {own}/
[http]
	proxy = {other}
[fetch]
	bundleURI = {other}/bundle
[transfer]
	bundleURI = true
[extensions]
	partialClone = away
[remote "away"]
	url = {other}/away.git
	promisor = true
"""
"""A configuration by which git would ask another host."""


@pytest.mark.row("D1", "D10", "P7")
def test_what_a_repository_holds_runs_nothing_asks_nobody_and_leads_nowhere(
    repository: Repository,
    git_http_server: GitHttpServerFactory,
    gateway: GatewayFactory,
    canary: HostileHost,
    tmp_path: Path,
) -> None:
    ran, evil, hooks = plant_command(tmp_path)
    own = git_http_server()
    configuration = COMMANDS.format(evil=evil, hooks=hooks, included=hooks / "config")
    (tmp_path / "outside.md").write_bytes(document("outside"))
    repository.document("a.md", id="a")
    repository.write(".gitattributes", "* filter=evil diff=evil merge=evil text ident\n")
    repository.write(".gitconfig", configuration)
    repository.write(".lfsconfig", f"[lfs]\n\turl = {canary.url_of('lfs')}\n")
    pointer = f"oid sha256:{'12' * 32}\nsize 12\n"
    repository.write("lfs.md", f"version https://git-lfs.github.com/spec/v1\n{pointer}")
    modules = (
        f'[submodule "{name}"]\n\tpath = {name}\n\turl = {url}\n\tupdate = !{evil}\n'
        for name, url in {
            "sub": canary.url_of("sub"),
            "option": f"--upload-pack={evil}",
            "ext": f"ext::{evil}",
            "../../up": f"-u{evil}",
        }.items()
    )
    repository.write(".gitmodules", "".join(modules))
    for name, target in {
        "outside.md": str(tmp_path / "outside.md"),
        "up.md": "../../outside.md",
        "passwd.md": "/etc/passwd",
        "folder": str(tmp_path),
    }.items():
        repository.link(name, target)
    for hook in hooks.iterdir():
        repository.write(f".githooks/{hook.name}", hook.read_bytes())
    repository.commit()
    for name in ("sub", "option"):
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{'12' * 20},{name}")
    commit = repository.publish()
    (repository.bare / "hooks").mkdir(exist_ok=True)
    for hook in hooks.iterdir():
        (repository.bare / "hooks" / hook.name).symlink_to(hook)
    process = gateway(registry({"acme": own.url_of(repository), "file": repository.url}))
    process.wait_for_state("acme", "serving")
    process.wait_for_state("file", "serving")
    rows = process.status("artifacts=true")["owners"]
    served = {name: (row["served_commit"], paths_of(row)) for name, row in rows.items()}
    assert served == dict.fromkeys(("acme", "file"), (commit, {"a.md"}))
    assert (canary.asked, ran.exists()) == ([], False)


@pytest.mark.row("P4", "P7")
def test_what_is_planted_in_a_copy_runs_nothing_and_sends_git_nowhere_else(
    repository: Repository,
    git_http_server: GitHttpServerFactory,
    gateway: GatewayFactory,
    canary: HostileHost,
    tmp_path: Path,
) -> None:
    ran, evil, hooks = plant_command(tmp_path)
    own = git_http_server()
    repository.publish_document("One.")
    process = gateway(registry({"acme": own.url_of(repository)}))
    process.wait_for_state("acme", "serving")
    process.stop()
    copy = process.cache / "acme"
    commands = COMMANDS.format(evil=evil, hooks=hooks, included=hooks / "config")
    addresses = ADDRESSES.format(own=own.url, other=canary.url_of("x"))
    (hooks / "config").write_text(addresses)
    with (copy / "config").open("a") as configuration:
        configuration.write(commands + addresses)
    for hook in hooks.iterdir():
        (copy / "hooks").mkdir(exist_ok=True)
        (copy / "hooks" / hook.name).symlink_to(hook)
    commit = repository.publish_document("Two.")
    process.start()
    wait_until(lambda: process.owner("acme")["served_commit"] == commit)
    assert process.refresh("acme").json["commit"] == commit
    assert (canary.asked, ran.exists()) == ([], False)


def plant_command(folder: Path) -> tuple[Path, Path, Path]:
    """Return a file that isn't there, a command that makes it, and hooks that are that command."""
    ran, evil, hooks = folder / "ran", folder / "evil.sh", folder / "hooks"
    evil.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    evil.chmod(0o755)
    hooks.mkdir()
    for name in ("reference-transaction", "post-checkout", "pre-auto-gc", "post-update", "update"):
        (hooks / name).symlink_to(evil)
    return ran, evil, hooks
