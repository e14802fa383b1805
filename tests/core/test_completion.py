"""What is offered for the arguments of the template."""

from collections.abc import Callable, Mapping

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from okf_mcp_server import Snapshot
from okf_mcp_server.completion import MAX_VALUES, complete

Load = Callable[..., Snapshot]

TEMPLATE = "knowledge://acme/{type}/{id}"


def document(document_id: str, document_type: str = "Note") -> str:
    return f"---\nexport: true\ntype: {document_type}\nid: {document_id}\n---\nBody.\n"


def ask(
    argument: str,
    value: str = "",
    *,
    ref: types.ResourceTemplateReference | types.PromptReference | None = None,
    chosen: Mapping[str, str] | None = None,
) -> types.CompleteRequestParams:
    return types.CompleteRequestParams(
        ref=ref or types.ResourceTemplateReference(uri=TEMPLATE),
        argument=types.CompletionArgument(name=argument, value=value),
        context=None if chosen is None else types.CompletionContext(arguments=dict(chosen)),
    )


def offered(snapshot: Snapshot, params: types.CompleteRequestParams) -> list[str]:
    completion = complete(snapshot, "acme", params).completion
    assert (completion.total, completion.has_more) == (len(completion.values), False)
    return completion.values


@pytest.fixture
def snapshot(load: Load) -> Snapshot:
    """Some documents, in an order of their own."""
    return load(
        {
            "1.md": document("Zeta", "Architecture Decision"),
            "2.md": document("über/uns 50%"),
            "3.md": document("beta"),
            "4.md": document("BETa-2", "Architecture Decision"),
            "5.md": document("alphabet", "Tech Note"),
            "6.md": document("beta", "Tech Note"),
        }
    )


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ("", ["architecture-decision", "note", "tech-note"]),
        ("note", ["note", "tech-note"]),
        ("NOTE", ["note", "tech-note"]),
        ("t", ["tech-note", "architecture-decision", "note"]),
        ("decision", ["architecture-decision"]),
        ("nothing", []),
    ],
)
def test_types_are_offered_as_they_stand_in_a_uri_beginnings_first(
    snapshot: Snapshot, value: str, values: list[str]
) -> None:
    assert offered(snapshot, ask("type", value)) == values


@pytest.mark.parametrize(
    ("value", "chosen", "values"),
    [
        ("", None, ["Zeta", "über/uns 50%", "beta", "BETa-2", "alphabet"]),
        ("bet", None, ["beta", "BETa-2", "alphabet"]),
        ("ÜBER/", None, ["über/uns 50%"]),
        ("%C3", None, []),
        ("", {"type": "architecture-decision"}, ["Zeta", "BETa-2"]),
        ("bet", {"type": "tech-note"}, ["beta", "alphabet"]),
        ("bet", {"type": "no-such-type"}, []),
        ("bet", {"type": ""}, ["beta", "BETa-2", "alphabet"]),
        ("bet", {"id": "beta"}, ["beta", "BETa-2", "alphabet"]),
        ("bet", {}, ["beta", "BETa-2", "alphabet"]),
    ],
)
def test_ids_are_offered_as_a_person_writes_them_of_the_chosen_type(
    snapshot: Snapshot, value: str, chosen: Mapping[str, str] | None, values: list[str]
) -> None:
    assert offered(snapshot, ask("id", value, chosen=chosen)) == values


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 1_234])
def test_at_most_a_hundred_are_offered_and_how_many_there_are(load: Load, count: int) -> None:
    snapshot = load({f"{number:05}.md": document(f"doc-{number}") for number in range(count)})
    completion = complete(snapshot, "acme", ask("id", "doc")).completion
    assert completion == types.Completion(
        values=[f"doc-{number}" for number in range(min(count, MAX_VALUES))],
        total=count,
        has_more=count > 100,
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            ask("type", ref=types.PromptReference(name="summary")),
            "There are no prompts here to complete",
        ),
        (
            ask("type", ref=types.ResourceTemplateReference(uri="knowledge://beta/{type}/{id}")),
            f"Only the arguments of {TEMPLATE} can be completed",
        ),
        (
            ask("type", ref=types.ResourceTemplateReference(uri="knowledge://acme/note/beta")),
            f"Only the arguments of {TEMPLATE} can be completed",
        ),
        (ask("title"), "The arguments of the template are type and id"),
        (ask(""), "The arguments of the template are type and id"),
    ],
)
def test_whatever_is_not_the_template_is_invalid_params(
    snapshot: Snapshot, params: types.CompleteRequestParams, message: str
) -> None:
    with pytest.raises(MCPError) as caught:
        complete(snapshot, "acme", params)
    assert caught.value.error == types.ErrorData(code=types.INVALID_PARAMS, message=message)
