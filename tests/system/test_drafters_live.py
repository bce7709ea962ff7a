"""Drafters of a whole service: any that is loaded can be pinned, and they come and go while it serves."""

from collections.abc import Iterator

import pytest

from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import ENDLESS, LiveService, live_service, tiny_settings

WHY = {"reason": "a trial", "expires_in": "1h"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("service")
    with live_service(tiny_settings(make_tiny_model(folder / "model"), folder / "paceline.db")) as service:
        yield service


def pin(live: LiveService, drafter: str) -> int:
    body = {"drafter": drafter, "block_length": 4} | WHY
    return live.admin.put("/api/v1/policies/chat/en/pin", json=body).status_code


def test_every_drafter_that_fits_is_loaded_and_can_be_pinned_and_gives_the_same_text(live: LiveService) -> None:
    assert live.admin.get("/api/v1/drafters").json() == {"drafters": ["none", "ngram", "suffix"]}
    texts = set()
    for drafter in ("ngram", "suffix"):
        assert pin(live, drafter) == 200
        answer = live.complete(logit_bias=ENDLESS)
        assert answer.headers["x-paceline-drafter"] == drafter
        texts.add(answer.json()["choices"][0]["text"])
        live.fold()
        assert live.metric("paceline_proposed_tokens_total", drafter=drafter) > 0
    live.admin.delete("/api/v1/policies/chat/en/pin")
    answer = live.complete(logit_bias=ENDLESS, headers={"x-paceline-mode": "off"})
    assert answer.headers["x-paceline-drafter"] == "none"
    assert texts == {answer.json()["choices"][0]["text"]}


def test_a_drafter_is_unloaded_and_loaded_under_traffic_without_a_failed_request(live: LiveService) -> None:
    with live.traffic(3, logit_bias=ENDLESS):
        for _ in range(2):
            gone = live.admin.delete("/api/v1/drafters/suffix", params={"reason": "a trial"})
            assert gone.json() == {"drafters": ["none", "ngram"]}
            assert pin(live, "suffix") == 422
            back = live.admin.post("/api/v1/drafters", json={"source": "suffix", "reason": "a trial"})
            assert back.json() == {"drafters": ["none", "ngram", "suffix"]}
            assert pin(live, "suffix") == 200
            assert live.admin.delete("/api/v1/policies/chat/en/pin").status_code == 200


def test_a_drafter_that_something_names_stays(live: LiveService) -> None:
    learned = live.admin.delete("/api/v1/drafters/ngram", params={"reason": "a trial"})
    assert (learned.status_code, "is the one that is learned" in learned.json()["detail"]) == (409, True)
    assert pin(live, "suffix") == 200
    pinned = live.admin.delete("/api/v1/drafters/suffix", params={"reason": "a trial"})
    assert pinned.status_code == 409
    assert pinned.json()["detail"] == "A pin of chat/en names the drafter 'suffix': take it back first."
    live.admin.delete("/api/v1/policies/chat/en/pin")
    unknown = live.admin.post("/api/v1/drafters", json={"source": "eagle", "reason": "a trial"})
    assert (unknown.status_code, "there is no drafter 'eagle'" in unknown.json()["detail"]) == (409, True)
