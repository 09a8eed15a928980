"""The clients, against a service that is made up: what they send, what they make of answers, when they ask again."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import httpx
import msgspec
import pytest
from litestar.response import Response
from litestar.response import Stream as LitestarStream

import roost
from roost import settings
from roost.client import AsyncClient, BatchItem, Client, Constraints, ServiceProblem, ServiceUnreachable, VMWish, calls
from roost.client.call import Call
from roost.client.events import PATIENCE, Following
from roost.model.errors import InvalidInput
from roost.wire.changes import ChangeView
from roost.wire.healing import HealingWish
from roost.wire.machines import MachineChange, NewMachine
from roost.wire.maintenance import WalkHold
from roost.wire.problems import Problem
from roost.wire.tenants import BatchResults, Done, Placed, TenantLine, TenantPage, VMView
from roost.wire.thresholds import ThresholdTargets, ThresholdWish

D2 = VMWish(type="D2", count=2)
PLACED = Placed(tenant="web", generation=7, vms=[], decision="k", evicted=[], short=[], spread=[])
DONE = Done(decision="k")

Answer = httpx.Response | Exception


def answer(body: object, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, content=msgspec.json.encode(body), headers=headers)


def refusal(code: str, status: int, *, after: str = "", retryable: bool = True) -> httpx.Response:
    problem = Problem(
        type="urn", title="No", status=status, detail="just so", code=f"roost.{code}", retryable=retryable
    )
    return answer(problem, status, **({"retry-after": after} if after else {}))


class Desk:
    """Answers as it was told to, in order, the last one again and again; remembers what was asked."""

    def __init__(self, *answers: Answer | Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers, self.asked = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        if not isinstance(found, httpx.Response):
            return found(request)
        if isinstance(found.stream, Stream):
            return found
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)  # one is sent once

    def keys(self) -> list[str]:
        return [request.headers["idempotency-key"] for request in self.asked]


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited; nobody really waits."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("roost.client.client.time.sleep", found.append)
    monkeypatch.setattr("roost.client.async_client.asyncio.sleep", sleep)
    return found


def client(desk: Desk, **more: Any) -> Client:
    return Client("http://desk:1", transport=httpx.MockTransport(desk), **more)


def both(desk: Callable[[], Desk], call: Call[Any], **more: Any) -> Iterator[tuple[Desk, object]]:
    """What comes of a call through either client: its answer or its error."""
    one, other = desk(), desk()
    try:
        found: object = client(one, **more).send(call)
    except roost.RoostError as error:
        found = error
    yield one, found

    async def ask() -> object:
        async with AsyncClient("http://desk:1", transport=httpx.MockTransport(other), **more) as awaited:
            try:
                answered: object = await awaited.send(call)
            except roost.RoostError as error:
                return error
            return answered

    yield other, asyncio.run(ask())


# ------------------------------------------------------------------------------------------------------- what is said

EVERY: list[Call[Any]] = [
    calls.create_tenant("web", [D2]),
    calls.list_tenants(),
    calls.get_tenant("web"),
    calls.delete_tenant("web"),
    calls.scale_out("web", [D2]),
    calls.scale_in("web", ["web/0"]),
    calls.batch([BatchItem(tenant="web", vms=(D2,))]),
    calls.list_vms(),
    calls.get_vm("web/0"),
    calls.delete_vm("web/0"),
    calls.move_vm("web/0", "m"),
    calls.list_machines(),
    calls.get_machine("m"),
    calls.change_machine("m", MachineChange(health=1)),
    calls.change_rack("r", "down"),
    calls.add_machines([NewMachine(name="m", datacenter="d", cluster="c", rack="r", generation="g")]),
    calls.remove_machine("m"),
    calls.list_clusters(),
    calls.get_cluster("c"),
    calls.change_cluster("c", quarantined=True),
    calls.remove_cluster("c"),
    calls.show_foresight(),
    calls.set_foresight({"D2": {"regular": 1.0}}),
    calls.clear_foresight(),
    calls.list_thresholds(),
    calls.set_thresholds("c", ThresholdWish(new=1)),
    calls.clear_thresholds("c"),
    calls.compute_thresholds(ThresholdTargets()),
    calls.get_zone(),
    calls.capacity(),
    calls.explain("web", [D2]),
    calls.why_not("m", "web", [D2]),
    calls.list_decisions(),
    calls.get_decision("k"),
    calls.explain_decision("k"),
    calls.why_not_decision("k", "m"),
    calls.list_evictions(),
    calls.summarise_evictions(),
    calls.list_waiting(),
    calls.cancel_waiting("web/0"),
    calls.list_unhealed(),
    calls.list_healed(),
    calls.summarise_healing(),
    calls.heal(HealingWish()),
    calls.hear(["m"]),
    calls.evict(["web/0"]),
    calls.get_walk(),
    calls.hold_walk(WalkHold(walk="w", owner="me")),
    calls.end_walk("w"),
    calls.list_policies(),
    calls.active_policy(),
    calls.policy_results(),
    calls.get_policy("p"),
    calls.validate_policy("name: p"),
    calls.put_policy("p", "name: p"),
    calls.delete_policy("p"),
    calls.activate_policy("p"),
    calls.shadow_policy("p"),
    calls.end_shadow(),
    calls.policy_differences(),
    calls.list_changes(),
    calls.stream_changes(),
    calls.snapshot(),
    calls.list_tokens(),
    calls.create_token("t", ["read"]),
    calls.revoke_token("t"),
    calls.health(),
    calls.ready(),
    calls.metrics(),
]


def offered() -> dict[tuple[str, str], object]:
    """What the service answers with, by method and path."""
    from roost.api.app import ROUTES

    found: dict[tuple[str, str], object] = {}
    for handler in ROUTES:
        (method,), (path,) = handler.http_methods - {"OPTIONS"}, handler.paths
        answered = get_type_hints(handler.fn)["return"]
        if answered is LitestarStream:
            answered = bytes
        form = get_args(answered)[0] if get_origin(answered) is Response else answered
        if get_origin(form) is dict:  # a client takes it as it comes
            form = bytes
        found[str(getattr(method, "value", method)), re.sub(r"\{\w+:(str|path)\}", "{}", path)] = form
    return found


# Litestar's newest release wants query parameters declared otherwise.
@pytest.mark.filterwarnings("ignore:Deprecated '(query|header)' parameter:DeprecationWarning")
def test_every_operation_of_the_service_is_a_call_that_answers_with_the_same_form() -> None:
    named = "web/0|web|m|r|c|k|p|t"
    made = {
        (call.method, re.sub(rf"/v1/(\w+)/({named})(?=/|$)", r"/v1/\1/{}", call.path)): call.answer for call in EVERY
    }
    assert made == offered()
    own = {name for name, each in inspect.getmembers(calls, inspect.isfunction) if each.__module__ == calls.__name__}
    spoken = own - {"stream_changes"}
    assert len(spoken) > 50
    for kind in (Client, AsyncClient):
        assert spoken <= set(dir(kind))


def test_writes_carry_a_key_and_reads_none() -> None:
    for call in EVERY:
        if call.method == "GET":
            assert call.key is None
        elif call.key is None:
            asked = ("/v1/explain", "/v1/why-not", "/v1/policies/validate", "/v1/thresholds/compute")
            # What is healed, heard or evicted is not so again; a walk goes by a name of its own.
            once = ("/v1/healing", "/v1/heartbeats", "/v1/evictions", "/v1/maintenance")
            assert call.path in ("/v1/batch", "/v1/tokens", *once, *asked)


def test_a_request_says_all_there_is_to_say() -> None:
    desk = Desk(answer(PLACED, 201))
    constraints = Constraints(min_fault_domains=2)
    with client(desk, token="roost_ci_secret") as service:
        assert service.create_tenant("web", [D2], constraints, key="mine", dry_run=True) == PLACED
        service.scale_out("web", [D2], if_match=7)
    create, scale = desk.asked
    assert str(create.url) == "http://desk:1/v1/tenants?dry_run=true"
    assert create.headers["authorization"] == "Bearer roost_ci_secret"
    assert create.headers["content-type"] == "application/json"
    assert create.headers["idempotency-key"] == "mine"
    wanted = {"tenant": "web", "vms": [{"type": "D2", "count": 2}], "constraints": {"min_fault_domains": 2}}
    assert msgspec.json.decode(create.content) == wanted
    assert scale.headers["if-match"] == '"7"'
    assert scale.url.query == b""


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (calls.get_vm("web/0"), "/v1/vms/web/0"),
        (calls.get_vm("web/a b?c"), "/v1/vms/web/a%20b%3Fc"),
        (calls.get_machine("rack 1/m#2"), "/v1/machines/rack%201%2Fm%232"),
        (calls.get_tenant("a?b"), "/v1/tenants/a%3Fb"),
        (calls.get_decision("shop:1%2F"), "/v1/decisions/shop%3A1%252F"),
        (calls.get_cluster(".."), "/v1/clusters/%2E%2E"),
        (calls.get_policy("dichte Größe"), "/v1/policies/dichte%20Gr%C3%B6%C3%9Fe"),
    ],
)
def test_names_are_escaped_as_parts_of_a_path(call: Call[Any], path: str) -> None:
    desk = Desk(answer(DONE))
    with pytest.raises(ServiceUnreachable, match="none of Roost's"):
        client(desk).send(call)
    assert desk.asked[0].url.raw_path.decode() == path


def test_a_name_that_is_empty_is_refused_before_it_means_something_else() -> None:
    for wrong in (lambda: calls.delete_tenant(""), lambda: calls.get_vm("web/"), lambda: calls.get_machine("")):
        with pytest.raises(InvalidInput, match="is empty"):
            wrong()


@pytest.mark.parametrize("key", ["with space", "Schlüssel", "x" * 151, "line\nbreak"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="key: is"):
        calls.delete_tenant("web", key=key)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "desk:1"}, "client.url"),
        ({"url": "ftp://desk"}, "write http://"),
        ({"url": "http://"}, "with a host"),
        ({"url": "http://desk:port"}, "client.url"),
        ({"token": "two words"}, "client.token"),
        ({"url": "https://desk", "ca_file": "/nowhere.pem"}, "no such file"),
    ],
)
def test_a_client_that_cannot_work_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        Client(**arguments)


def test_a_ca_file_that_holds_no_certificate_is_refused(tmp_path: Any) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(InvalidInput, match="PEM"):
        Client("https://desk", ca_file=str(tmp_path / "ca.pem"))


def test_settings_make_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_URL", "http://user:secret@there:2/")
    assert repr(Client.from_settings()) == "Client('http://user:***@there:2')"
    assert AsyncClient.from_settings(settings.ClientSection(url="http://other:3")).url == "http://other:3"


def test_methods_go_by_the_parameters_of_their_calls() -> None:
    for kind in (Client, AsyncClient):
        method, call = inspect.signature(kind.scale_in), inspect.signature(calls.scale_in)
        assert list(method.parameters)[1:] == list(call.parameters)
        assert kind.scale_in.__doc__ == calls.scale_in.__doc__
    assert roost.Client is Client
    assert roost.AsyncClient is AsyncClient


# ------------------------------------------------------------------------------------------------------ asking again


def test_a_problem_is_raised_with_all_that_it_says() -> None:
    for desk, found in both(lambda: Desk(refusal("no_capacity", 409)), calls.create_tenant("web", [D2])):
        assert isinstance(found, ServiceProblem)
        assert (found.code, found.status, found.retryable) == ("roost.no_capacity", 409, True)
        assert str(found) == "No: just so"
        assert len(desk.asked) == 1, "to ask again at once would not help"


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.WriteError("broken pipe"),
        httpx.RemoteProtocolError("closed"),
        refusal("rate_limited", 429, after="1"),
        refusal("overloaded", 503, after="0"),
        refusal("timeout", 503, after="5"),
    ],
)
def test_what_may_be_asked_again_is_with_the_same_key(trouble: Answer, slept: list[float]) -> None:
    for desk, found in both(lambda: Desk(trouble, trouble, answer(PLACED)), calls.create_tenant("web", [D2])):
        assert found == PLACED
        assert len(set(desk.keys())) == 1
        assert desk.keys()[0]
        assert len(desk.asked) == 3
    if isinstance(trouble, httpx.Response):
        assert min(slept) >= float(trouble.headers["retry-after"])


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ReadTimeout("slow"),
        refusal("overloaded", 503),
        refusal("overloaded", 503, after="60"),
        refusal("overloaded", 503, after="Wed, 21 Oct 2026 07:28:00 GMT"),
        refusal("conflict", 409, after="1"),
        refusal("internal", 500, after="1"),
    ],
)
def test_what_may_not_be_asked_again_is_not(trouble: Answer, slept: list[float]) -> None:
    for desk, found in both(lambda: Desk(trouble), calls.delete_tenant("web")):
        assert isinstance(found, ServiceProblem | ServiceUnreachable)
        assert len(desk.asked) == 1
    assert slept == []


def test_attempts_are_bounded_and_ever_further_apart(slept: list[float]) -> None:
    desk = Desk(httpx.ConnectError("refused"))
    with pytest.raises(ServiceUnreachable, match=r"^http://desk:1: refused.*`roost serve`"):
        client(desk).get_zone()
    assert len(desk.asked) == 4
    assert slept[0] < slept[1] < slept[2] < 1
    desk = Desk(httpx.ConnectError("refused"))
    with pytest.raises(ServiceUnreachable):
        client(desk, retries=0).get_zone()
    assert len(desk.asked) == 1


def test_a_token_is_not_made_twice() -> None:
    desk = Desk(httpx.ReadError("reset"))
    with pytest.raises(ServiceUnreachable):
        client(desk).create_token("ci", ["read"])
    assert len(desk.asked) == 1
    desk = Desk(httpx.ConnectError("refused"))
    with pytest.raises(ServiceUnreachable):
        client(desk).create_token("ci", ["read"])
    assert len(desk.asked) == 4, "nothing was sent"


def test_whoever_gives_up_on_a_write_can_ask_again_with_its_key() -> None:
    desk = Desk(httpx.ReadTimeout("slow"))
    with pytest.raises(ServiceUnreachable, match="no answer in time") as caught:
        client(desk).delete_tenant("web")
    assert caught.value.key == desk.keys()[0]


def test_what_takes_longer_is_waited_for_longer() -> None:
    desk = Desk(answer(DONE))
    quick, patient = client(desk, timeout=7), client(desk, timeout=1_000)
    for service, call in (
        (quick, calls.get_zone()),
        (quick, calls.put_policy("p", "")),
        (patient, calls.get_policy("p")),
    ):
        with pytest.raises(ServiceUnreachable):
            service.send(call)
    assert [request.extensions["timeout"]["read"] for request in desk.asked] == [7, calls.COMPILING, 1_000]


def test_each_request_of_a_batch_has_a_key() -> None:
    desk = Desk(httpx.ReadError("reset"), answer(BatchResults(results=[], done=0, failed=0)))
    client(desk).batch([BatchItem(tenant="a", vms=(D2,), key="mine"), BatchItem(tenant="b", vms=(D2,))])
    first, again = (msgspec.json.decode(request.content)["requests"] for request in desk.asked)
    assert first == again
    assert first[0]["key"] == "mine"
    assert first[1]["key"]


@pytest.mark.parametrize(
    "strange", [httpx.Response(200, text="<html>"), httpx.Response(502, text="<html>"), answer({"status": 3})]
)
def test_an_answer_that_is_none_of_roosts_is_said_to_be(strange: httpx.Response) -> None:
    for _, found in both(lambda: Desk(strange), calls.health()):
        assert isinstance(found, ServiceUnreachable)
        assert "Roost" in str(found)


def test_what_is_done_without_an_answer_is_none() -> None:
    for desk, found in both(lambda: Desk(httpx.Response(204)), calls.delete_policy("mine")):
        assert found is None
        assert desk.asked[0].method == "DELETE"


# --------------------------------------------------------------------------------------------------------------- lists


def pages(request: httpx.Request) -> httpx.Response:
    """Five tenants, two a page."""
    names = [f"t{i}" for i in range(5)]
    start = names.index(request.url.params.get("cursor", "t0"))
    items = [TenantLine(tenant=name, generation=1, vms=1) for name in names[start : start + 2]]
    return answer(TenantPage(items=items, next=names[start + 2] if start + 2 < len(names) else None))


def test_lists_are_followed_to_their_end() -> None:
    desk = Desk(pages)
    found = client(desk).tenants(prefix="t", limit=2)
    assert next(found).tenant == "t0"
    assert len(desk.asked) == 1, "no page is fetched before it is needed"
    assert [each.tenant for each in found] == ["t1", "t2", "t3", "t4"]
    assert {request.url.params["prefix"] for request in desk.asked} == {"t"}

    async def all_of_them() -> list[str]:
        async with AsyncClient("http://desk:1", transport=httpx.MockTransport(Desk(pages))) as service:
            return [each.tenant async for each in service.tenants()]

    assert asyncio.run(all_of_them()) == ["t0", "t1", "t2", "t3", "t4"]


# -------------------------------------------------------------------------------------------------------------- streams


def event(revision: int, kind: str = "change", body: object = None) -> bytes:
    data = msgspec.json.encode(body or ChangeView(revision=revision, key=f"k{revision}\u2028"))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (revision, kind.encode(), data)


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Pieces, then an end or an error."""

    def __init__(self, pieces: Sequence[bytes], error: Exception | None = None) -> None:
        self.pieces, self.error = pieces, error

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.error:
            raise self.error

    async def __aiter__(self) -> Any:
        for piece in self:
            yield piece


def streams() -> Desk:
    """A stream that breaks in the middle of an event, one that ends, one that says it is too late."""
    whole = b"retry: 1000\n\n" + event(4) + event(5) + event(6)
    broken = [whole[i : i + 7] for i in range(0, len(whole) - 9, 7)]
    too_old = Problem(type="", title="Gone", status=410, detail="", code="roost.too_old", retryable=False)
    return Desk(
        httpx.Response(200, stream=Stream(broken, httpx.ReadError("reset"))),
        httpx.ConnectError("refused"),
        refusal("starting", 503, after="1"),
        httpx.Response(200, stream=Stream([b": hello\n\n", event(6), event(9, "bookmark", {"revision": 9})])),
        httpx.Response(
            200, stream=Stream([event(10), b"event: problem\ndata: " + msgspec.json.encode(too_old) + b"\n\n"])
        ),
    )


def test_a_stream_that_breaks_goes_on_after_the_last_revision() -> None:
    async def awaited(desk: Desk, found: list[int]) -> None:
        async with AsyncClient("http://desk:1", transport=httpx.MockTransport(desk)) as service:
            async for change in service.changes(3):
                found.append(change.revision)

    def read(desk: Desk, found: list[int]) -> None:
        for change in client(desk).changes(3):
            found.append(change.revision)

    for run in (read, lambda desk, found: asyncio.run(awaited(desk, found))):
        desk, found = streams(), list[int]()
        with pytest.raises(ServiceProblem, match="Gone"):
            run(desk, found)
        assert found == [4, 5, 6, 10]
        assert [request.url.params["since"] for request in desk.asked] == ["3", "5", "5", "5", "9"]


def test_a_stream_that_never_began_is_given_up_like_any_call() -> None:
    desk = Desk(httpx.ConnectError("refused"))
    with pytest.raises(ServiceUnreachable):
        next(client(desk).changes())
    assert len(desk.asked) == 4
    desk = Desk(refusal("forbidden", 403, retryable=False))
    with pytest.raises(ServiceProblem):
        next(client(desk).changes())
    assert len(desk.asked) == 1
    assert "since" not in desk.asked[0].url.params


def test_a_reader_waits_for_a_service_that_is_away_but_not_for_ever() -> None:
    now = [0.0]
    following = Following(3, 3, "http://desk:1", clock=lambda: now[0])
    assert [change.revision for change in following.take(event(4))] == [4]
    away = httpx.ConnectError("refused")
    pauses = []
    while now[0] <= PATIENCE:
        pauses.append(following.pause(away))
        now[0] += pauses[-1]
    assert pauses == sorted(pauses)
    assert max(pauses) == 5
    with pytest.raises(ServiceUnreachable):
        following.pause(away)


def test_a_vm_is_a_value() -> None:
    desk = Desk(answer(VMView(vm="web/0", tenant="web", type="D2", machine="m")))
    assert client(desk).get_vm("web/0").machine == "m"
