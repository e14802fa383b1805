"""The template of an owner's URIs."""

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from okf_mcp_server.templates import list_templates, template_uri


def test_the_one_template_says_how_a_uri_is_made() -> None:
    (template,) = list_templates("acme", None).resource_templates
    assert template.uri_template == "knowledge://acme/{type}/{id}"
    assert (template.name, template.mime_type) == ("document", "text/markdown")
    assert template.title
    assert all(word in (template.description or "") for word in ("acme", "`type`", "`id`"))


@pytest.mark.parametrize(
    ("owner", "uri"),
    [
        ("a.b-c_1", "knowledge://a.b-c_1/{type}/{id}"),
        ("my team", "knowledge://my%20team/{type}/{id}"),
        ("{type}/é", "knowledge://%7Btype%7D%2F%C3%A9/{type}/{id}"),
    ],
)
def test_the_owner_stands_in_it_as_in_every_uri(owner: str, uri: str) -> None:
    assert template_uri(owner) == uri


@pytest.mark.parametrize("cursor", ["", "garbage", "WzAsICJhLm1kIl0="])
def test_there_is_no_second_page(cursor: str) -> None:
    with pytest.raises(MCPError) as caught:
        list_templates("acme", cursor)
    assert caught.value.error == types.ErrorData(
        code=types.INVALID_PARAMS, message="Invalid cursor"
    )
