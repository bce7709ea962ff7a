"""From upstreams to lanes."""

from dataclasses import replace

from policies.types import PLAIN, UNKNOWN_LENGTH
from tests.tuner.fleet.pools.simulated_fleet import ngram_upstream, plain_upstream, two_in_one
from tuner.fleet.pools.lanes import RESIDENT_NOTE, Alias, is_resident_plain, lanes_of
from tuner.fleet.pools.verdict import resident_note
from tuner.fleet.types import UNKNOWN_DRAFTER, Capability, Effect, EngineKind, Lane, Lever, Upstream


def llama(effect: Effect) -> Upstream:
    lever = Capability(Lever.REQUEST_LENGTH, effect, "sent 0, and nothing was drafted")
    return Upstream("l", "http://l", EngineKind.LLAMA_CPP, "b9000", ("m",), True, "draft", 6, (lever,))


def test_an_upstream_is_a_lane_that_changes_nothing() -> None:
    plain, drafting = lanes_of([plain_upstream("p"), ngram_upstream("n")])
    assert plain == Lane("p", "p", PLAIN, 0)
    assert plain.plain
    assert drafting == Lane("n", "n", "ngram", 5)


def test_where_a_length_in_the_request_works_there_is_a_lane_for_each_up_to_the_longest() -> None:
    lanes = lanes_of([llama(Effect.WORKS)])
    assert [(lane.name, lane.drafter, lane.block_length) for lane in lanes] == [
        ("l", "draft", 6),
        ("l/plain", PLAIN, 0),
        ("l/draft-2", "draft", 2),
        ("l/draft-4", "draft", 4),
    ]
    assert [lane.fields for lane in lanes] == [
        (),
        (("speculative.n_max", 0),),
        (("speculative.n_max", 2),),
        (("speculative.n_max", 4),),
    ]


def test_where_nobody_knows_the_longest_block_no_length_is_made_up() -> None:
    lanes = lanes_of([replace(llama(Effect.WORKS), block_length=0)])
    assert [(lane.name, lane.drafter, lane.block_length) for lane in lanes] == [
        ("l", "draft", UNKNOWN_LENGTH),
        ("l/plain", PLAIN, 0),
    ]
    assert [lane.plain for lane in lanes] == [False, True]


def test_a_length_that_is_ignored_makes_no_lanes() -> None:
    for effect in (Effect.IGNORED, Effect.REFUSED, Effect.UNKNOWN, Effect.ABSENT):
        assert len(lanes_of([llama(effect)])) == 1


def test_a_plain_lane_of_a_server_that_keeps_its_drafter_is_said_to_be_none_like_others() -> None:
    lanes = lanes_of([llama(Effect.WORKS)])
    assert [is_resident_plain(lane) for lane in lanes] == [False, True, False, False]
    assert resident_note(lanes) == RESIDENT_NOTE
    assert resident_note((*lanes, Lane("p", "p", PLAIN, 0))) == ""
    assert resident_note(lanes_of([ngram_upstream("n")])) == ""


def test_an_upstream_of_which_nobody_knows_whether_it_drafts_is_no_plain_pool() -> None:
    (lane,) = lanes_of([Upstream("x", "http://x")])
    assert (lane.drafter, lane.block_length, lane.plain) == (UNKNOWN_DRAFTER, UNKNOWN_LENGTH, False)
    (lane,) = lanes_of([replace(Upstream("x", "http://x"), speculates=True)])
    assert not lane.plain


def test_aliases_are_lanes_where_they_work() -> None:
    aliases = {"a": [Alias("fast", "ngram", 5)]}
    lanes = lanes_of([two_in_one("a")], aliases)
    assert lanes[1] == Lane("a/fast", "a", "ngram", 5, model="fast")
    assert len(lanes_of([replace(two_in_one("a"), capabilities=())], aliases)) == 1
