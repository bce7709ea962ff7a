"""From the publisher to the plug-in: by file and by URL."""

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from policies.cycle_policy import Outlook, Survival
from policies.wire import WireError, to_wire
from tests.tuner.fleet.vllm.plugin_examples import decision, policy
from tuner.fleet.vllm.plugin import following
from tuner.fleet.vllm.plugin.following import NOTHING_HEARD, Follower
from tuner.fleet.vllm.plugin.messages import ORDERS, Orders
from tuner.fleet.vllm.plugin.reading import OrdersReader
from tuner.fleet.vllm.publishing import Page, Publisher

SECONDS = 20.0


def until(holds: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    ends = time.monotonic() + SECONDS
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < ends
        pause.wait(0.005)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.json"


@pytest.fixture
def publisher(path: Path) -> Iterator[Publisher]:
    publisher = Publisher(path)
    publisher.start()
    yield publisher
    publisher.close()


@pytest.fixture
def follower(path: Path) -> Iterator[Follower]:
    follower = Follower(str(path))
    follower.start()
    yield follower
    follower.close()


class Site(ThreadingHTTPServer):
    """Serves a publisher's page, and counts."""

    page: Page | None = None
    broken = False
    whole = unchanged = 0
    tokens: "set[str | None]"


class Answer(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        page = self.server.page
        self.server.tokens.add(self.headers.get("Authorization"))
        if page is None or self.server.broken:
            self.send_error(503)
        elif page.matches(self.headers.get("If-None-Match")):
            self.server.unchanged += 1
            self.send_response(304)
            self.end_headers()
        else:
            self.server.whole += 1
            self.send_response(200)
            self.send_header("ETag", page.etag)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(("127.0.0.1", 0), Answer) as site:
        site.tokens = set()
        thread = threading.Thread(target=site.serve_forever, args=(0.01,))
        thread.start()
        yield site
        site.shutdown()
        thread.join()


def test_what_is_published_is_in_force_soon_and_whole(publisher: Publisher, follower: Follower) -> None:
    assert follower.in_force is NOTHING_HEARD
    publisher.publish(policy())
    until(lambda: follower.in_force.steered)
    assert follower.in_force.policy == policy()
    publisher.set_others(decision(2))
    until(lambda: follower.in_force.others == decision(2))
    publisher.publish(policy(kill=True, version=4))
    until(lambda: follower.in_force.policy.kill)
    assert follower.in_force.policy.version == 4


def test_orders_that_stay_are_read_once_and_their_date_says_that_somebody_is_there(
    publisher: Publisher, follower: Follower, path: Path
) -> None:
    publisher.publish(policy())
    until(lambda: follower.in_force.steered)
    first, date = follower.in_force, path.stat().st_mtime_ns
    until(lambda: path.stat().st_mtime_ns != date)
    date = path.stat().st_mtime_ns
    until(lambda: path.stat().st_mtime_ns != date)
    assert follower.in_force is first


def test_orders_that_cannot_be_read_leave_the_last_good_ones(follower: Follower, path: Path) -> None:
    path.write_bytes(to_wire(ORDERS, Orders(policy())))
    until(lambda: follower.in_force.steered)
    for broken in (b"", b"{", b'{"format":7,"kind":"orders","value":[]}', b"\xff"):
        follower.sentence = ""
        path.write_bytes(broken)
        until(lambda: follower.sentence != "")
        assert follower.in_force.policy == policy()
    path.write_bytes(to_wire(ORDERS, Orders(policy(version=9))))
    until(lambda: follower.in_force.policy.version == 9)
    assert follower.sentence == ""


def test_what_stays_from_orders_to_orders_is_taken_over_and_what_changes_is_not() -> None:
    key, other = ("ngram", "chat", "en"), ("ngram", "code", "en")
    survivals = {key: Survival(((0.5,),)), other: Survival(((0.4,),))}
    outlooks = {key: Outlook((0.5,), (0.5,))}
    reader = OrdersReader()
    first, again, last = (
        reader.read(to_wire(ORDERS, Orders(each)).decode())
        for each in (
            policy(survivals=survivals, outlooks=outlooks),
            policy(survivals={**survivals, other: Survival(((0.3,),))}, outlooks=outlooks, kill=True),
            policy(),
        )
    )
    assert first.policy == policy(survivals=survivals, outlooks=outlooks)
    assert again.policy.kill
    assert again.policy.survivals[key] is first.policy.survivals[key]
    assert again.policy.outlooks[key] is first.policy.outlooks[key]
    assert again.policy.survivals[other] == Survival(((0.3,),))
    assert last.policy == policy()


@pytest.mark.parametrize("broken", ["[]", "[1,null]", "[[1],null]", "[{},null]", "null"])
def test_orders_of_another_form_are_refused(broken: str) -> None:
    with pytest.raises(WireError):
        OrdersReader().read('{"format":1,"kind":"orders","value":' + broken + "}")


@pytest.mark.parametrize("pairs", ["7", "[7]", '[["a",[[]]]]', '[[["a","b","c"],7]]', '[[[["x"],"b","c"],[[]]]]'])
def test_survivals_of_another_form_are_refused(pairs: str) -> None:
    text = to_wire(ORDERS, Orders(policy())).decode()
    assert text.count("[0,false,0],[],") == 1
    with pytest.raises(WireError):
        OrdersReader().read(text.replace("[0,false,0],[],", f"[0,false,0],{pairs},"))


def test_after_a_silence_blocks_are_as_launched_and_what_was_off_stays_off(
    monkeypatch: pytest.MonkeyPatch, follower: Follower, path: Path
) -> None:
    path.write_bytes(to_wire(ORDERS, Orders(policy(killed_routes=frozenset({"code"})))))
    until(lambda: follower.in_force.steered)
    monkeypatch.setattr(following, "SILENCE_SECONDS", 0.0)
    until(lambda: not follower.in_force.steered)
    assert follower.in_force.policy.cost is None
    assert follower.in_force.policy.plain_on("code")
    assert not follower.in_force.policy.plain_on("chat")
    monkeypatch.setattr(following, "SILENCE_SECONDS", 60.0)
    path.touch()
    until(lambda: follower.in_force.steered)
    assert follower.in_force.policy.cost == policy().cost


def test_a_publisher_that_is_closed_takes_its_orders_away(path: Path) -> None:
    publisher = Publisher(path)
    publisher.start()
    publisher.publish(policy())
    until(path.exists)
    publisher.close()
    assert not path.exists()
    assert publisher.page is None


def test_a_file_that_cannot_be_written_is_told_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    publisher = Publisher(folder / "orders.json")
    publisher.start()
    publisher.publish(policy())
    until(lambda: publisher.sentence != "")
    assert publisher.sentence.startswith("the orders for vLLM's plug-in cannot be written: ")
    folder.mkdir()
    until((folder / "orders.json").exists)
    until(lambda: publisher.sentence == "")
    publisher.close()
    assert len(caplog.records) == 1


def test_orders_come_by_url_once_while_they_stay(site: Site) -> None:
    publisher = Publisher(None)
    publisher.start()
    publisher.publish(policy())
    until(lambda: publisher.page is not None)
    site.page = publisher.page
    follower = Follower(f"http://127.0.0.1:{site.server_port}/plugin/orders", "secret")
    follower.start()
    until(lambda: site.unchanged >= 3)
    assert site.whole == 1
    assert site.tokens == {"Bearer secret"}
    assert follower.in_force.policy == policy()
    site.broken = True
    until(lambda: "503" in follower.sentence)
    assert follower.in_force.steered
    publisher.publish(policy(kill=True))
    page = site.page
    until(lambda: publisher.page is not page)
    site.page, site.broken = publisher.page, False
    until(lambda: follower.in_force.policy.kill)
    follower.close()
    publisher.close()


@pytest.mark.parametrize(
    ("asked", "same"), [(None, False), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"b"', False)]
)
def test_an_etag_is_compared_as_http_says(asked: str | None, same: bool) -> None:
    assert Page('"a"', b"").matches(asked) is same
