"""What a publish changed, and who is told."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from anyio import create_task_group, fail_after
from mcp import Client
from mcp.client.subscriptions import Subscription
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)
from mcp_types import ResourcesCapability, SubscriptionFilter, ToolsCapability

from okf_mcp_server import Snapshot, build_server
from okf_mcp_server.changes import MAX_STREAMS, MAX_URIS, Changes, find_changes

Load = Callable[..., Snapshot]

DEADLINE_SECONDS = 60.0
LIST = ResourcesListChanged()
A = ResourceUpdated("knowledge://acme/note/a")
B = ResourceUpdated("knowledge://acme/note/b")
C = ResourceUpdated("knowledge://acme/note/c")
PLAN_A = ResourceUpdated("knowledge://acme/plan/a")
SHOUTED_A = "KNOWLEDGE://ACME/note/%61"
EVERYTHING = [LIST, A, B, C, PLAN_A]


def note(*lines: str, body: str = "Body.", document_type: str = "Note") -> str:
    head = ["---", "export: true", f"type: {document_type}", *lines]
    return "\n".join([*head, "---", body, ""])


DESCRIBED = "description: Words"
BEFORE = {"a.md": note(DESCRIBED), "b.md": note()}


@pytest.mark.parametrize(
    ("after", "events"),
    [
        pytest.param(BEFORE, [], id="nothing"),
        pytest.param(
            {**BEFORE, "z.md": "No document."}, [], id="another file, so another commit alone"
        ),
        pytest.param({**BEFORE, "a.md": note(DESCRIBED, body="Longer.")}, [A], id="content alone"),
        pytest.param(
            {**BEFORE, "b.md": note(body="Longer.")}, [LIST, B], id="content that describes"
        ),
        pytest.param(
            {**BEFORE, "a.md": note(DESCRIBED, "title: A")}, [LIST], id="a title, which is the name"
        ),
        pytest.param(
            {**BEFORE, "a.md": note("description: Others")}, [LIST], id="a description alone"
        ),
        pytest.param(
            {**BEFORE, "a.md": note(DESCRIBED, "more: x")}, [], id="a field of no listing"
        ),
        pytest.param({**BEFORE, "c.md": note()}, [LIST, C], id="one that came"),
        pytest.param({"a.md": BEFORE["a.md"]}, [LIST, B], id="one that went"),
        pytest.param({}, [LIST, A, B], id="all of them went"),
        pytest.param(
            {"z.md": note(DESCRIBED, "id: a", "title: a"), "b.md": BEFORE["b.md"]},
            [LIST],
            id="one that moved place",
        ),
        pytest.param(
            {"a0.md": note(DESCRIBED, "id: a", "title: a"), "b.md": BEFORE["b.md"]},
            [],
            id="one that moved, not its place",
        ),
        pytest.param(
            {**BEFORE, "a.md": note(DESCRIBED, document_type="Plan")},
            [LIST, A, PLAN_A],
            id="another type, so another URI",
        ),
        pytest.param(
            {"a.md": note(DESCRIBED, "id: b", "title: a"), "b.md": note("id: a", "title: b")},
            [LIST],
            id="two that swapped their ids, with one content",
        ),
    ],
)
def test_what_changed_is_told_and_nothing_else(
    load: Load, after: dict[str, str], events: list[ServerEvent]
) -> None:
    before = load(BEFORE, commit="1" * 40)
    for previous in (None, before):
        swapped = load(after, commit="2" * 40, previous=previous)
        assert find_changes(before, swapped, EVERYTHING) == events


def test_the_first_publish_changes_the_list_and_what_is_there(load: Load) -> None:
    assert find_changes(None, load(BEFORE), EVERYTHING) == [LIST, A, B]
    assert find_changes(None, load({}), EVERYTHING) == [LIST]


def test_what_nobody_wants_is_not_told(load: Load) -> None:
    assert find_changes(load(BEFORE), load({}), []) == []
    assert find_changes(load(BEFORE), load({}), [B]) == [B]


class Served:
    """An owner's server, and the snapshot that it serves."""

    def __init__(self, snapshot: Snapshot, changes: Changes | None = None) -> None:
        # Replaced as a whole, by `publish`.
        self.snapshot = snapshot
        self.changes = changes or Changes("acme")
        self.server = build_server("acme", lambda: self.snapshot, self.changes)

    def publish(self, snapshot: Snapshot) -> None:
        before, self.snapshot = self.snapshot, snapshot
        self.changes.publish(before, snapshot)


@asynccontextmanager
async def connected(served: Served) -> AsyncGenerator[Client]:
    with fail_after(DEADLINE_SECONDS):
        async with create_task_group() as tasks:
            tasks.start_soon(served.changes.run)
            async with Client(served.server, cache=None, read_timeout_seconds=30) as client:
                yield client
            tasks.cancel_scope.cancel()


async def take(stream: Subscription, count: int) -> list[ServerEvent]:
    return [await anext(stream) for _ in range(count)]


@pytest.mark.anyio
async def test_each_stream_is_told_what_it_asked_for_until_all_are_ended(load: Load) -> None:
    served = Served(load(BEFORE))
    async with connected(served) as client, AsyncExitStack() as stack:
        listing = await stack.enter_async_context(client.listen(resources_list_changed=True))
        reading = await stack.enter_async_context(
            client.listen(resource_subscriptions=[B.uri, B.uri, SHOUTED_A])
        )
        nothing = await stack.enter_async_context(client.listen(tools_list_changed=True))
        served.publish(load({**BEFORE, "b.md": note(body="Two.")}))
        assert await take(reading, 1) == [B]
        served.publish(load({}))
        assert await take(reading, 2) == [B, A]
        served.changes.close()
        # The two publishes are one event for whoever took none in between, or two.
        assert {event async for event in listing} == {LIST}
        assert [event async for event in reading] == []
        assert [event async for event in nothing] == []


@pytest.mark.anyio
async def test_a_thousand_changes_at_once_end_no_stream(load: Load) -> None:
    def files(body: str) -> dict[str, str]:
        return {f"{number:05}.md": note(body=body) for number in range(3 * MAX_URIS)}

    served = Served(load(files("One.")))
    uris = [document.uri for document in served.snapshot.documents]
    async with connected(served) as client, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                client.listen(
                    resources_list_changed=True,
                    resource_subscriptions=uris[start : start + MAX_URIS],
                )
            )
            for start in range(0, len(uris), MAX_URIS)
        ]
        served.publish(load(files("Two.")))
        for stream in streams:
            told = await take(stream, MAX_URIS + 1)
            assert {LIST, *map(ResourceUpdated, stream.honored.resource_subscriptions or ())} == {
                *told
            }


@pytest.mark.anyio
async def test_a_stream_takes_a_thousand_resources_and_the_rest_is_refused(load: Load) -> None:
    uris = [f"knowledge://acme/note/{number}" for number in range(MAX_URIS + 1)]
    async with connected(Served(load({}))) as client:
        with pytest.raises(MCPError) as caught:
            async with client.listen(resource_subscriptions=uris):
                pass
        message = (
            "A stream takes 1000 resources at most, and 64 long ones; open another for the rest"
        )
        assert (caught.value.code, caught.value.message) == (-32602, message)
        long = [f"knowledge://acme/note/{'é' * 675}{number:02}" for number in range(65)]
        with pytest.raises(MCPError) as caught:
            async with client.listen(resource_subscriptions=long):
                pass
        assert (caught.value.code, caught.value.message) == (-32602, message)
        async with client.listen(
            resources_list_changed=True, resource_subscriptions=[*uris[2:], uris[2]]
        ) as stream:
            assert stream.honored.resources_list_changed


@pytest.mark.anyio
async def test_one_stream_too_many_is_refused_until_another_ends(load: Load) -> None:
    async with connected(Served(load({}))) as client, AsyncExitStack() as stack:
        for _ in range(MAX_STREAMS - 1):
            await stack.enter_async_context(client.listen(resources_list_changed=True))
        async with client.listen(resources_list_changed=True):
            with pytest.raises(MCPError) as caught:
                async with client.listen(resources_list_changed=True):
                    pass
            assert caught.value.code == -32603
        async with client.listen(resources_list_changed=True) as stream:
            assert stream.honored.resources_list_changed


@pytest.mark.anyio
async def test_after_the_end_of_all_streams_none_begins(load: Load) -> None:
    served = Served(load({}))
    async with connected(served) as client:
        served.changes.close()
        with pytest.raises(MCPError) as caught:
            async with client.listen(resources_list_changed=True):
                pass
    assert (caught.value.code, caught.value.message) == (-32603, "The server is stopping")


@pytest.mark.anyio
async def test_a_stream_is_refused_where_there_is_no_room_and_leaves_its_place(load: Load) -> None:
    changes = Changes("acme", has_room=lambda: changes.open_streams < 1)
    served = Served(load(BEFORE), changes)
    async with connected(served) as client:
        for _ in range(2):
            async with client.listen(resources_list_changed=True):
                with pytest.raises(MCPError, match="Too many streams are open"):
                    async with client.listen(resources_list_changed=True):
                        pass
            await client.list_tools()  # its end reaches the server before this does


@pytest.mark.anyio
async def test_only_what_can_happen_here_is_acknowledged(load: Load) -> None:
    served = Served(load(BEFORE))
    others = ["knowledge://other/note/a", "file:///etc/passwd", "knowledge://acme/a", ""]
    others.append(f"knowledge://acme/note/{'é' * 1000}")  # no document's URI is as long
    async with (
        connected(served) as client,
        client.listen(
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=[*others, SHOUTED_A, A.uri, C.uri],
        ) as stream,
    ):
        assert stream.honored == SubscriptionFilter(
            resources_list_changed=True, resource_subscriptions=[A.uri, C.uri]
        )
        capabilities = client.server_capabilities
        assert capabilities.tools == ToolsCapability(list_changed=False)
        assert capabilities.resources == ResourcesCapability(subscribe=True, list_changed=True)


@pytest.mark.anyio
async def test_a_stream_that_ended_leaves_nothing_that_is_wanted(load: Load) -> None:
    served = Served(load(BEFORE))
    async with connected(served) as client:
        async with client.listen(resources_list_changed=True, resource_subscriptions=[A.uri]):
            async with client.listen(resource_subscriptions=[A.uri, B.uri]):
                assert served.changes.wanted == {LIST, A, B}
            # Its end reaches the server before a later request does.
            await client.list_tools()
            assert served.changes.wanted == {LIST, A}
        await client.list_tools()
        assert served.changes.wanted == frozenset()
