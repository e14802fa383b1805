"""The processes that a process started, and what they are, as Linux tells it."""

from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """Return state, parent, group and session of a process; nothing once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int) -> bool:
    """Say whether a process is there, and not only waits to be reaped."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def processes_below(pid: int) -> frozenset[int]:
    """Return the children of a process, their children and so on, also those not yet reaped."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    parents = {each: int(fields[1]) for each in pids if (fields := stat_fields(each))}
    found = {pid}
    while new := {each for each, parent in parents.items() if parent in found} - found:
        found |= new
    return frozenset(found - {pid})


def command_line(pid: int) -> str:
    """Return a process's words with a blank between; nothing once it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()


def is_watchdog(pid: int) -> bool:
    """Say whether a process is what kills git after the gateway's death."""
    return "watchdog.sh" in command_line(pid)
