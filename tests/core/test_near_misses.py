"""Files that seem to opt in: each is told what is in the way, and no other file is told so."""

import pytest

from okf_mcp_server.documents import read_page
from okf_mcp_server.frontmatter import decode, read_frontmatter
from okf_mcp_server.near_misses import NearMiss, find_near_miss


def near_miss(text: str) -> NearMiss | None:
    decoded = decode(text.encode())
    return find_near_miss(decoded, read_frontmatter(decoded))


@pytest.mark.row("D1")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('"true"', "'true'"),
        ("'yes'", "'yes'"),
        ("true\u00a0", "'true'"),
        ("ture", "'ture'"),
        ("true;", "'true;'"),
        ("1", "'1'"),
        ("y", "'y'"),
        ("[true]", "a list"),
    ],
    ids=ascii,
)
def test_an_export_that_means_true_and_is_not_is_a_near_miss(value: str, shown: str) -> None:
    assert near_miss(f"---\ntype: Note\nexport: {value}\n---\n") == NearMiss(
        f"not exported: {shown} is not the boolean true; write 'export: true' and no more", 3
    )


@pytest.mark.row("D1")
@pytest.mark.parametrize("key", ["Export", "EXPORT", "exported", "Exports", "exprot", '" export "'])
def test_a_key_that_is_nearly_export_is_a_near_miss(key: str) -> None:
    found = near_miss(f"---\ntype: Note\n{key}: true\n---\n")
    shown = key.strip('"')
    assert found == NearMiss(f"not exported: the key is {shown!r}; write 'export: true'", 3)


TOO_LATE = "the frontmatter must begin on line 1, with nothing before its '---'"
NOT_A_FENCE = "line 1 must be '---' and nothing else"
NOT_CLOSED = "no second line '---' closes the frontmatter"
NO_MAPPING = "the frontmatter must be lines such as 'type: Note', with a blank after the colon"
NO_FENCE = "there is no frontmatter; write '---' as line 1, and once more below the last key"


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("\n\n---\nexport: true\n---\n", TOO_LATE, 3),
        ("<!-- x -->\n---\nexport: true\n---\n", TOO_LATE, 2),
        ("# Title\n\n---\ntype: Note\nexport: true\n---\n", TOO_LATE, 3),
        (" ---\nexport: true\n---\n", NOT_A_FENCE, 1),
        ("--- yaml\nexport: yes\n---\n", NOT_A_FENCE, 1),
        ("-----\ntype: Note\nexport: true\n-----\n", NOT_A_FENCE, 1),
        ("--\nexport: true\n--\n", NOT_A_FENCE, 1),
        ("+++\nexport = true\n+++\n", NOT_A_FENCE, 1),
        ("---\ntype: Note\nexport: true\n\nText.\n", NOT_CLOSED, 1),
        ("---\nexport: true\n...\nText.\n", NOT_CLOSED, 1),
        ("---\ntype:Note\nexport:true\n---\n", NO_MAPPING, 1),
        ("---\ntype:Note\nexport:true\n" + "tag:x\n" * 40 + "---\n", NO_MAPPING, 1),
        ("---\n- type: Note\n- export: true\n---\n", NO_MAPPING, 1),
        ("\ufeff\ufeff---\nexport: true\n---\n", NOT_A_FENCE, 1),
        ("type: Note\nExport: true\n\nText.\n", NO_FENCE, 1),
    ],
    ids=ascii,
)
def test_a_fence_that_is_no_fence_is_a_near_miss(text: str, message: str, line: int) -> None:
    assert near_miss(text) == NearMiss(f"not exported: {message}", line)


@pytest.mark.row("D1", "D2")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "# How to export\n\nWrite this:\n\n```\n---\nexport: true\n---\n```\n",
        "# How to export\n\nWrite this:\n\n    ---\n    export: true\n    ---\n",
        "----\nA ruled text.\n",
        "Set export: true in the settings.\n",
        "\n" * 30 + "export: true\n",
        "---\nexport: false\n---\n",
        '---\nexport: "no"\n---\n',
        "---\nexport: ~\n---\n",
        "---\nexport: pdf\n---\n",
        "---\nexport: {pdf: true}\n---\n",
        "---\nexports: [pdf]\n---\n",
        "---\nexport:\nExport: true\n---\n",
        "---\nexported: false\n---\n",
        "---\nmeta:\n  export: true\n---\n",
        "---\nimport: true\n---\n",
        *(
            f"---\n{key}: true\n---\n"
            for key in ("explore", "expired", "exposed", "expert", "exporter", "export_pdf")
        ),
    ],
    ids=ascii,
)
def test_a_file_that_means_no_export_is_no_near_miss(text: str) -> None:
    assert near_miss(text) is None
    assert read_page(text.encode()) is None


@pytest.mark.parametrize("text", [" " * 4_000_000, "---\n" + "a\n" * 1_000_000, "-" * 4_000_000])
def test_a_long_file_is_judged_by_its_head(text: str) -> None:
    assert find_near_miss(text, None) is None
