"""What we build: the wheel and the source archive hold what they must, and work installed.

One wheel is built from the source archive and installed with the locked versions into an
environment of its own; what the tests start there knows nothing of this work tree.
"""

import json
import os
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from support.clients import mcp_client
from support.gateway_process import GatewayProcess
from support.git_http import GitHttpServerFactory
from support.repositories import Repository

PROJECT = Path(__file__).parent.parent
SOURCES = {"okf_mcp_server": PROJECT / "core", "okf_mcp_gateway": PROJECT / "gateway"}
BUILD_SECONDS = 300
DEADLINE_SECONDS = 60
SOUTH_TOKEN = "south-token-of-the-tests"


def entry_points() -> tuple[str, ...]:
    """Return the names of our console scripts, so that a new one is tried by itself."""
    scripts = (PROJECT / "pyproject.toml").read_text().partition("[project.scripts]\n")[2]
    names = [line.partition(" = ")[0] for line in scripts.partition("\n\n")[0].splitlines()]
    assert {"okf-mcp-server", "okf-mcp-lint", "okf-mcp-gateway"} <= set(names)
    return tuple(names)


def run(
    command: list[str | Path],
    *,
    folder: Path,
    environment: dict[str, str] | None = None,
    deadline: float = DEADLINE_SECONDS,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )


def must(command: list[str | Path], folder: Path) -> None:
    ended = run(command, folder=folder, deadline=BUILD_SECONDS)
    assert ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"


@dataclass(frozen=True)
class Built:
    """What was built, and where the wheel is installed."""

    archive: Path
    wheel: Path
    programs: Path
    """The folder of the environment's programs."""

    @property
    def python(self) -> Path:
        return self.programs / "python"

    def packed(self) -> dict[str, int]:
        """Return the files of the wheel with their sizes."""
        with ZipFile(self.wheel) as wheel:
            return {each.filename: each.file_size for each in wheel.infolist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("wheel")
    must([sys.executable, "-m", "build", "--outdir", folder / "dist", PROJECT], folder)
    (archive,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    must([sys.executable, "-m", "venv", folder / "venv"], folder)
    programs = folder / "venv" / "bin"
    install: list[str | Path] = [programs / "python", "-m", "pip", "install", "--quiet"]
    lock = PROJECT / "requirements.lock"
    must([*install, "--require-hashes", "--requirement", lock], folder)
    must([*install, "--no-deps", wheel], folder)
    return Built(archive, wheel, programs)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment without a word about this work tree."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}


def test_the_wheel_holds_every_file_of_both_packages_and_no_other(built: Built) -> None:
    expected = {
        path.relative_to(root).as_posix(): path.stat().st_size
        for package, root in SOURCES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name: size for name, size in built.packed().items() if ".dist-info/" not in name}
    assert found == expected
    source = {"askpass.sh", "bounds.sh", "gitconfig", "watchdog.sh"}
    data = {"py.typed", "sample/README.md.txt", *(f"source/{name}" for name in source)}
    assert {f"okf_mcp_gateway/{name}" for name in data} <= found.keys()
    assert "okf_mcp_server/py.typed" in found


def test_the_source_archive_holds_what_a_wheel_is_built_from_and_no_more(built: Built) -> None:
    with tarfile.open(built.archive) as archive:
        names = {Path(*Path(member.name).parts[1:]).as_posix() for member in archive}
    packed = {name for name in built.packed() if ".dist-info/" not in name}
    sources = {f"{SOURCES[name.partition('/')[0]].name}/{name}" for name in packed}
    around = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert names == sources | around


def test_the_metadata_names_the_license_the_readme_and_the_scripts(built: Built) -> None:
    with ZipFile(built.wheel) as wheel:
        texts = {name.partition(".dist-info/")[2]: name for name in wheel.namelist()}
        metadata = wheel.read(texts["METADATA"]).decode()
        scripts = ConfigParser()
        scripts.read_string(wheel.read(texts["entry_points.txt"]).decode())
    assert "licenses/LICENSE" in texts
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert (PROJECT / "README.md").read_text() in metadata
    assert tuple(scripts["console_scripts"]) == tuple(sorted(entry_points()))


def test_the_installed_packages_need_nothing_else(
    built: Built, tmp_path: Path, environment: dict[str, str]
) -> None:
    ended = run([built.python, "-m", "pip", "check"], folder=tmp_path, environment=environment)
    assert ended.returncode == 0, ended.stdout
    imported = "import okf_mcp_server as a, okf_mcp_gateway as b; print(a.__file__, b.__file__)"
    ended = run([built.python, "-c", imported], folder=tmp_path, environment=environment)
    places = [Path(path) for path in ended.stdout.split()]
    assert [place.is_relative_to(built.programs.parent) for place in places] == [True, True]


@pytest.mark.row("T1")
@pytest.mark.parametrize("script", entry_points())
def test_each_console_script_runs_where_only_the_wheel_is_installed(
    built: Built, tmp_path: Path, environment: dict[str, str], script: str
) -> None:
    program = built.programs / script
    told = run([program, "--help"], folder=tmp_path, environment=environment)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"usage: {script} ")
    said = run([program, "--version"], folder=tmp_path, environment=environment)
    assert (said.returncode, said.stdout) == (0, f"{version('okf-mcp-server')}\n")


@pytest.mark.anyio
@pytest.mark.row("T1")
async def test_the_installed_server_serves_a_repository_over_stdio(
    built: Built, published: Repository, environment: dict[str, str]
) -> None:
    parameters = StdioServerParameters(
        command=str(built.programs / "okf-mcp-server"),
        args=["--roots", "."],
        cwd=published.clone,
        env=environment,
    )
    async with Client(parameters, cache=None, read_timeout_seconds=DEADLINE_SECONDS) as client:
        listed = await client.list_resources()
    assert [each.uri for each in listed.resources] == ["knowledge://origin.clone/note/a"]


@pytest.mark.row("T1")
def test_the_installed_linter_judges_a_repository(
    built: Built, repository: Repository, environment: dict[str, str]
) -> None:
    repository.document("a.md", id="a", body="It has [a link](b.md), so it is parsed.\n")
    repository.document("b.md", id="b")
    repository.commit()
    program = built.programs / "okf-mcp-lint"
    lint: list[str | Path] = [program, "--roots", "."]
    good = run(lint, folder=repository.clone, environment=environment)
    assert good.returncode == 0, good.stdout + good.stderr
    repository.document("b.md", id="a")
    bad = run(lint, folder=repository.clone, environment=environment)
    assert (bad.returncode, "duplicate-id" in bad.stdout) == (1, True), bad.stderr


@pytest.mark.anyio
@pytest.mark.row("T1")
async def test_the_installed_gateway_pulls_with_its_own_files_and_serves(
    built: Built, published: Repository, git_http_server: GitHttpServerFactory, tmp_path: Path
) -> None:
    """A host with a password: git needs our configuration, and our program that answers it."""
    host = git_http_server(user="reader", password=SOUTH_TOKEN)
    credential = {"token_env": "OKF_GIT_TOKEN_HOST", "token_user": "reader"}
    registry = {
        "owners": {"acme": {"url": host.url_of(published)}},
        "credentials": {host.authority: credential},
    }
    gateway = GatewayProcess(
        tmp_path / "gateway",
        json.dumps(registry),
        environment={"OKF_GIT_TOKEN_HOST": SOUTH_TOKEN},
        command=[str(built.programs / "okf-mcp-gateway")],
    )
    with gateway:
        assert gateway.wait_for_state("acme", "serving")["served_commit"] == published.head
        async with mcp_client(gateway.mcp_url("acme"), gateway.token) as client:
            listed = await client.list_resources()
    assert [each.uri for each in listed.resources] == ["knowledge://acme/note/a"]
    gateway.command = (*gateway.command, "check")
    assert gateway.run() == 0
    assert "The configuration is good." in gateway.stdout


PROGRAM = """\
from okf_mcp_server import run, slugify_type
owner: str = slugify_type("A Type")
run(roots={roots}, owner=owner)
"""


@pytest.mark.row("T1")
@pytest.mark.parametrize(("roots", "status"), [('["docs"]', 0), ("3", 1)], ids=["right", "wrong"])
def test_a_users_program_is_type_checked_against_the_installed_wheel(
    built: Built, tmp_path: Path, environment: dict[str, str], roots: str, status: int
) -> None:
    (tmp_path / "serve.py").write_text(PROGRAM.format(roots=roots))
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = Path(sys.executable).with_name("pyright")
    ended = run(
        [pyright, "--pythonpath", built.python, "--project", tmp_path],
        folder=tmp_path,
        environment=environment,
        deadline=BUILD_SECONDS,
    )
    assert ended.returncode == status, ended.stdout
    assert ("reportArgumentType" in ended.stdout) == (status == 1)
