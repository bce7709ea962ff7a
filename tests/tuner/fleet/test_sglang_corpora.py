"""Texts by language for SGLang's n-gram drafter.

SGLang itself cannot be had here (it needs a GPU), so the server is a stub that keeps the rules which were read in its
source: one load at a time, no name twice, documents cut off at a limit in tokens, all forgotten at a restart.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web
from aiohttp.test_utils import TestServer

from tuner.fleet.sglang_corpora import IDLE_SECONDS, MOST_BYTES, MOST_TEXTS, Corpora, CorporaKeeper


class Stub:
    """The three endpoints."""

    def __init__(self, most_tokens: int = 1000) -> None:
        self.texts: dict[str, list[str]] = {}
        self.tokens: dict[str, int] = {}
        self.asked: list[str] = []
        self.most_tokens = most_tokens
        self.loading = False
        self.app = web.Application(client_max_size=1 << 26)
        self.app.router.add_post("/add_external_corpus", self._add)
        self.app.router.add_post("/remove_external_corpus", self._remove)
        self.app.router.add_get("/list_external_corpora", self._list)

    async def _add(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, documents = body["corpus_id"], body["documents"]
        self.asked.append(f"add {name}")
        if self.loading:
            return self._refuse("Another corpus load is already in progress.")
        if name in self.texts:
            return self._refuse(f"Corpus '{name}' already exists.")
        room = self.most_tokens - sum(self.tokens.values())
        words = sum(len(document.split()) + 1 for document in documents) - 1
        if room <= 0:
            return self._refuse(f"External ngram corpus exceeds the remaining token budget ({room}) after loading 0.")
        self.texts[name], self.tokens[name] = documents, min(words, room)
        return web.json_response(
            {"success": True, "corpus_id": name, "message": "", "loaded_token_count": self.tokens[name]}
        )

    async def _remove(self, request: web.Request) -> web.Response:
        name = (await request.json())["corpus_id"]
        self.asked.append(f"remove {name}")
        if name not in self.texts:
            return self._refuse(f"Corpus '{name}' does not exist.")
        del self.texts[name], self.tokens[name]
        return web.json_response({"success": True, "message": f"Removed corpus '{name}'."})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True, "corpus_token_counts": self.tokens, "message": ""})

    def _refuse(self, message: str) -> web.Response:
        return web.json_response({"success": False, "message": message}, status=400)


class Bench:
    """A keeper before a stub, with a clock that tests set."""

    def __init__(self, keeper: CorporaKeeper, stub: Stub, server: TestServer) -> None:
        self.keeper = keeper
        self.stub = stub
        self.server = server
        self.now = 0.0

    async def keep(self, **requests: int) -> Corpora:
        return await self.keeper.keep(requests)


def served(files: Mapping[str, Path], story: Callable[[Bench], Awaitable[None]], stub: Stub | None = None) -> Stub:
    """Run `story` before a stub."""
    stub = stub or Stub()

    async def run() -> None:
        server = TestServer(stub.app)
        async with server, httpx.AsyncClient(trust_env=False) as client:
            url = str(server.make_url("")).rstrip("/")
            bench = Bench(CorporaKeeper(client, url, files, lambda: bench.now), stub, server)
            await story(bench)

    asyncio.run(run())
    return stub


def written(folder: Path, **texts: str) -> dict[str, Path]:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.txt" for name in texts}


def test_languages_with_traffic_get_their_texts_and_others_do_not(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        found = await bench.keep(da=50, en=400, fi=3)
        assert found == Corpora({"en": 5, "da": 3}, ())
        assert bench.stub.texts == {"paceline-en": ["one two", "three four"], "paceline-da": ["en to tre"]}

    files = written(tmp_path, da="en to tre\n", en="one two\n\n\n\nthree four\n", fi="yksi", sv="ett")
    stub = served(files, story)
    assert stub.asked == ["add paceline-en", "add paceline-da"]


def test_what_is_loaded_is_not_loaded_again_until_the_server_restarts_or_the_file_changes(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.keep(da=5)
        await bench.keep(da=5)
        assert bench.stub.asked == ["add paceline-da"]
        bench.stub.texts.clear()
        bench.stub.tokens.clear()
        await bench.keep(da=5)
        assert bench.stub.asked == ["add paceline-da"] * 2
        written(tmp_path, da="fire fem")
        os.utime(files["da"], ns=(0, 12345))
        found = await bench.keep(da=5)
        assert bench.stub.asked[2:] == ["remove paceline-da", "add paceline-da"]
        assert bench.stub.texts == {"paceline-da": ["fire fem"]}
        assert found.tokens == {"da": 2}

    files = written(tmp_path, da="en to tre")
    served(files, story)


def test_a_lull_removes_nothing_and_a_long_silence_does(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.keep(da=5)
        bench.now = IDLE_SECONDS - 1.0
        assert (await bench.keep()).tokens == {"da": 1}
        bench.now = IDLE_SECONDS
        assert (await bench.keep(en=9)).tokens == {"en": 1}
        assert bench.stub.asked == ["add paceline-da", "remove paceline-da", "add paceline-en"]

    served(written(tmp_path, da="en", en="one"), story)


def test_no_more_texts_are_loaded_than_the_drafter_is_to_share_and_the_busiest_come_first(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.keep(aa=10, ab=20, ac=30, ad=40, ae=50, af=60)
        assert list(bench.stub.texts) == ["paceline-af", "paceline-ae", "paceline-ad", "paceline-ac"]
        bench.now = 60.0
        await bench.keep(aa=900, ab=20, ac=30, ad=40, ae=50)
        assert sorted(bench.stub.texts) == ["paceline-aa", "paceline-ac", "paceline-ad", "paceline-ae"]

    assert MOST_TEXTS == 4
    served(written(tmp_path, **{name: name for name in ("aa", "ab", "ac", "ad", "ae", "af")}), story)


def test_texts_of_others_are_left_alone(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.stub.texts["handbook"], bench.stub.tokens["handbook"] = ["x"], 1
        assert (await bench.keep(da=5)).tokens == {"da": 1}
        assert "handbook" in bench.stub.texts

    served(written(tmp_path, da="en"), story)


def test_what_the_server_refuses_is_told_and_the_next_text_is_still_tried(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        found = await bench.keep(da=9, en=5)
        assert found.tokens == {"da": 3}
        (sentence,) = found.sentences
        assert "refused: External ngram corpus exceeds the remaining token budget" in sentence
        bench.stub.texts.clear()
        bench.stub.tokens.clear()
        bench.stub.loading = True
        found = await bench.keep(da=9)
        assert found.tokens == {}
        assert "refused: Another corpus load is already in progress." in found.sentences[0]

    served(written(tmp_path, da="en to tre", en="one"), story, Stub(most_tokens=3))


def test_files_that_cannot_be_loaded_are_told_by_their_setting(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        found = await bench.keep(aa=1, ab=1, ac=1, ad=1)
        assert found.tokens == {}
        told = sorted(found.sentences)
        assert "fleet.corpora.aa" in told[0]
        assert "cannot be read (No such file" in told[0]
        assert "is no UTF-8" in told[1]
        assert "is empty: give it text" in told[2]
        assert f"bytes; give {MOST_BYTES:,} at most." in told[3]

    files = written(tmp_path, ab="", ac=" \n\n ", ad="")
    files["ab"].write_bytes(b"\xff\xfe\x00")
    files["ad"].write_bytes(b"")
    os.truncate(files["ad"], MOST_BYTES + 1)
    stub = served({**files, "aa": tmp_path / "none.txt"}, story)
    assert stub.asked == []


def test_a_server_without_the_endpoints_or_without_an_answer_is_told_and_nothing_raises(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        found = await bench.keep(da=5)
        assert found.tokens == {}
        assert "answered 404 and no JSON: it is no SGLang with --speculative-algorithm NGRAM." in found.sentences[0]
        await bench.server.close()
        found = await bench.keep(da=5)
        assert "did not answer (ConnectError)" in found.sentences[0]

    bare = Stub()
    bare.app = web.Application()
    served(written(tmp_path, da="en"), story, bare)


def test_another_algorithm_refuses_the_list_with_its_reason(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"success": False, "message": "Speculative algorithm is not NGRAM."}, status=400)

    async def story(bench: Bench) -> None:
        found = await bench.keep(da=5)
        assert found.sentences[0].endswith("/list_external_corpora refused: Speculative algorithm is not NGRAM.")

    other = Stub()
    other.app = web.Application()
    other.app.router.add_get("/list_external_corpora", refuse)
    served(written(tmp_path, da="en"), story, other)


def test_only_what_stands_in_the_operators_files_is_sent(tmp_path: Path) -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.content:
            sent.append(json.loads(request.content))
        return httpx.Response(200, json={"success": True, "corpus_token_counts": {}, "loaded_token_count": 1})

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await CorporaKeeper(client, "http://sglang", files, lambda: 0.0).keep({"da": 7, "xx": 3})

    files = written(tmp_path, da="en to tre")
    asyncio.run(run())
    assert sent == [{"corpus_id": "paceline-da", "documents": ["en to tre"]}]
