"""The servers of the wire tier, all at once: the bare application, ours, and the plain SDK."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.documents import registry
from bench.figures import Effort
from bench.peers import PEERS, PeerError
from bench.processes import SERVER_CPU, pinned, serving
from bench.questions import TOKEN
from okf_mcp_gateway.snapshot_file import NAME
from support.gateway_process import GatewayProcess, find_free_port, wait_until

BARE: Final = "bare ASGI"
OURS: Final = "ours"
OURS_OFF: Final = "ours, cache off"
PLAIN_SDK: Final = "plain SDK"

OWNERS: Final[Mapping[str, int]] = {"small": 50, "large": 500, "spread": 1_000, "cold": 5_001}
"""How many documents each owner has that is asked; the last cold one only to begin with."""

SERVING_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server that runs."""

    name: str
    pid: int
    port: int
    path: Callable[[str, int], str]
    """The path that an owner's questions go to, given the length of the answer."""
    counts: Callable[[], Mapping[str, int]] = dict
    """How its requests were answered so far, by ours alone."""

    @property
    def host(self) -> str:
        """What the header `Host` says: without a good one some refuse, fast."""
        return f"127.0.0.1:{self.port}"


@contextmanager
def gateway(
    folder: Path, servers: str, changes: Mapping[str, str | None] | None = None
) -> Generator[GatewayProcess]:
    """Run a gateway, all of whose owners serve; its log holds warnings alone."""
    process = GatewayProcess(
        folder,
        servers,
        token=TOKEN,
        environment={"OKF_GATEWAY_LOG_LEVEL": "warning", **(changes or {})},
    )
    with process:
        wait_until(lambda: _are_serving(process), SERVING_SECONDS)
        yield process


def wait_until_kept(process: GatewayProcess) -> None:
    """Wait until all that the next one needs for its start is in a gateway's cache."""
    kept = [process.cache / owner / NAME for owner in process.status()["owners"]]
    wait_until(lambda: all(path.exists() for path in kept), SERVING_SECONDS)


@contextmanager
def targets(
    folder: Path, owners: Mapping[str, int], effort: Effort
) -> Generator[tuple[Sequence[Target], Sequence[str]]]:
    """Run all servers, the bare one first; yield them, and a sentence for each that is left out."""
    servers = registry(folder, owners)
    left_out: list[str] = []
    with ExitStack() as stack, pinned(SERVER_CPU):
        bare, sdk = find_free_port(), find_free_port()
        bare_pid = stack.enter_context(serving("bench.bare", bare))
        counts = [f"{owner}={count}" for owner, count in owners.items()]
        sdk_pid = stack.enter_context(serving("bench.plain_sdk", sdk, *counts))
        ours = stack.enter_context(gateway(folder / "ours", servers))
        found = [
            Target(BARE, bare_pid, bare, lambda _, size: f"/{size}"),
            Target(OURS, ours.pid, ours.port, _mcp, lambda: _counts(ours, owners)),
            Target(PLAIN_SDK, sdk_pid, sdk, _mcp),
        ]
        if not effort.is_brief:
            switch = {"OKF_GATEWAY_ANSWER_CACHE": "off"}
            off = stack.enter_context(gateway(folder / "off", servers, switch))
            found.append(Target(OURS_OFF, off.pid, off.port, _mcp))
        for peer in PEERS if effort.with_peers else ():
            port = find_free_port()
            try:
                peer.install()
                pid = stack.enter_context(peer.run(port, owners, folder))
                found.append(Target(peer.name, pid, port, _mcp))
            except PeerError as error:
                left_out.append(f"{peer.name} was left out: {error}.")
        yield found, left_out


def _mcp(owner: str, _: int) -> str:
    return f"/{owner}/mcp"


def _are_serving(process: GatewayProcess) -> bool:
    summary = process.status()["summary"]
    return summary["serving"] == summary["total"]


def _counts(process: GatewayProcess, owners: Mapping[str, int]) -> Mapping[str, int]:
    """Return how the requests to all owners were answered, in sum."""
    rows = process.status("diagnostics=true")["owners"]
    each = [rows[owner]["diagnostics"]["answer_cache"] for owner in owners]
    return {name: sum(counts[name] for counts in each) for name in each[0]}
