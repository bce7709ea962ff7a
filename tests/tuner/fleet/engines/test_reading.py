"""Pages of real engines in one form, and what lies between two of them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.fleet.engines.recordings import changed, page, without
from tuner.fleet.engines.counters import Count, Counter
from tuner.fleet.engines.reading import EngineDelta, EngineReading, difference, is_another_server, read_page
from tuner.fleet.types import EngineKind

DRAFTS, TOKENS = "vllm:spec_decode_num_drafts_total", "vllm:generation_tokens_total"


def between(before: str, after: str, *, full_blocks: bool = False) -> EngineDelta:
    found = difference(read_page(before, 10.0), read_page(after, 15.0), full_blocks=full_blocks)
    assert found is not None
    return found


def test_a_page_of_vllm_tells_how_it_was_launched_and_how_it_does() -> None:
    found = read_page(page("vllm_ngram"), 10.0)
    assert (found.engine, found.models, found.taken_at) == (EngineKind.VLLM, ("smollm2",), 10.0)
    assert (found.speculates, found.block_length) == (True, 5)
    assert (found.running, found.waiting, found.kv_share) == (0.0, 0.0, 0.0)
    assert found.malformed == 0


def test_nine_requests_of_vllm_are_told_as_its_page_counts_them() -> None:
    found = between(page("vllm_ngram_start"), page("vllm_ngram"))
    assert (found.cycles, found.drafted, found.accepted) == (21.0, 101.0, 68.0)
    assert found.by_position == (17.0, 15.0, 12.0, 12.0, 12.0)
    assert (found.output_tokens, found.seconds, found.restarted) == (164.0, 5.0, False)
    assert found.acceptance == pytest.approx(68 / 101)
    assert found.emitted_per_cycle == pytest.approx(1 + 68 / 21)
    assert found.ttft is not None
    assert found.tpot is not None
    assert (found.ttft.count, found.ttft.at_most[float("inf")]) == (9.0, 9.0)
    assert found.tpot.mean == pytest.approx(0.0288, abs=1e-3)
    assert list(found.tpot.at_most) == sorted(found.tpot.at_most)


def test_two_engines_of_one_vllm_are_summed() -> None:
    found = between(page("vllm_two_engines_start"), page("vllm_two_engines"))
    assert (found.cycles, found.drafted, found.accepted) == (29.0, 85.0, 59.0)
    assert found.by_position == (24.0, 19.0, 16.0)
    assert read_page(page("vllm_two_engines"), 0.0).block_length == 3


def test_a_restart_of_one_engine_of_two_does_not_lose_the_other() -> None:
    before = page("vllm_two_engines")
    after = changed(before, DRAFTS, 4.0, 'engine="1"')  # it had 15
    after = changed(after, DRAFTS, 24.0, 'engine="0"')  # it had 14
    found = between(before, after)
    assert (found.cycles, found.restarted) == (14.0, True)


def test_report_51_a_restart_counts_from_zero_in_every_metric() -> None:
    found = between(page("vllm_ngram"), page("vllm_ngram_start"))
    assert found.restarted is True
    assert (found.cycles, found.drafted, found.accepted, found.output_tokens) == (0.0, 0.0, 0.0, 0.0)
    assert min(found.by_position) == 0.0
    assert found.ttft is not None
    assert min(found.ttft.at_most.values()) == 0.0


def test_report_47_vllm_41916_moments_of_creation_are_not_summed() -> None:
    page_of_vllm = page("vllm_ngram")
    found = read_page(page_of_vllm, 0.0)
    assert "vllm:spec_decode_num_drafts_created" in page_of_vllm
    assert sum(one.value for one in found.cycles.values()) == 21.0


def test_another_model_after_a_restart_is_counted_from_zero() -> None:
    after = page("vllm_ngram").replace('model_name="smollm2"', 'model_name="other"')
    found = between(page("vllm_ngram"), after)
    assert found.cycles == 21.0
    assert read_page(after, 0.0).models == ("other",)


def test_a_vllm_without_a_drafter_has_no_counters_of_drafts_which_is_not_zero() -> None:
    reading = read_page(page("vllm_plain"), 0.0)
    assert (reading.speculates, reading.block_length) == (False, None)
    found = between(page("vllm_plain"), page("vllm_plain"))
    assert (found.cycles, found.drafted, found.accepted, found.acceptance) == (None, None, None, None)
    assert found.drafting is None


def test_a_block_length_of_zero_is_off_and_no_acceptance_of_zero() -> None:
    """vLLM's counters of drafts stop where nothing is drafted, while tokens come."""
    found = between(page("vllm_ngram"), changed(page("vllm_ngram"), TOKENS, 264.0))
    assert (found.cycles, found.output_tokens) == (0.0, 100.0)
    assert found.drafting is False
    assert (found.acceptance, found.emitted_per_cycle) == (None, None)


def test_nothing_that_moves_says_nothing_of_drafting() -> None:
    assert between(page("vllm_ngram"), page("vllm_ngram")).drafting is None


def test_nothing_accepted_is_an_acceptance_of_zero() -> None:
    after = changed(page("vllm_ngram"), DRAFTS, 31.0)
    after = changed(after, "vllm:spec_decode_num_draft_tokens_total", 151.0)
    found = between(page("vllm_ngram"), after)
    assert (found.acceptance, found.emitted_per_cycle) == (0.0, 1.0)


@pytest.mark.parametrize("accepted", [102.0, 1000.0])
def test_report_46_sglang_11572_counts_that_would_be_an_acceptance_above_one_are_no_data(accepted: float) -> None:
    after = changed(page("vllm_ngram"), "vllm:spec_decode_num_accepted_tokens_total", accepted)
    found = between(page("vllm_ngram_start"), after)
    assert (found.drafted, found.accepted, found.acceptance, found.emitted_per_cycle) == (None, None, None, None)
    assert found.cycles == 21.0


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_report_46_acceptance_is_never_above_one_whatever_two_pages_tell(a: int, b: int, c: int, d: int) -> None:
    def reading(drafted: int, accepted: int) -> EngineReading:
        cycles: Counter = {(): Count(float(drafted))}
        return EngineReading(EngineKind.VLLM, 0.0, cycles=cycles, drafted=cycles, accepted={(): Count(float(accepted))})

    found = difference(reading(a, b), reading(c, d))
    assert found is not None
    assert found.acceptance is None or 0.0 <= found.acceptance <= 1.0


def test_a_model_that_denoises_has_no_drafts_whatever_its_counters_are_called() -> None:
    """vllm/v1/spec_decode/metrics.py counts denoising steps in the place of drafts; older ones by the same names."""
    diffusion = page("vllm_ngram")
    for name, other in (
        ("spec_decode_num_drafts", "diffusion_num_denoising_steps"),
        ("spec_decode_num_draft_tokens", "diffusion_num_canvas_positions"),
        ("spec_decode_num_accepted_tokens", "diffusion_num_committed_tokens"),
    ):
        diffusion += "\n".join(
            line.replace(name, other) for line in page("vllm_ngram").split("\n") if f":{name}_total{{" in line
        )
        diffusion += "\n"
    reading = read_page(diffusion, 0.0)
    assert (reading.diffusion, reading.speculates, reading.cycles) == (True, False, {})
    assert between(diffusion, diffusion).acceptance is None


def test_llama_cpp_is_told_as_its_page_counts() -> None:
    found = between(page("llama_cpp_ngram_start"), page("llama_cpp_ngram"))
    reading = read_page(page("llama_cpp_ngram"), 0.0)
    assert reading.engine is EngineKind.LLAMA_CPP
    assert reading.speculates is True
    assert (reading.kv_share, reading.ttft, reading.tpot) == (None, None, None)
    assert (reading.running, reading.waiting) == (0.0, 0.0)
    assert found.drafted is not None
    assert found.accepted is not None
    assert 0 < found.accepted <= found.drafted
    assert sum(found.by_position) == found.accepted


def test_a_llama_cpp_that_has_drafted_nothing_yet_does_not_tell_whether_it_would() -> None:
    """Its counters of drafts are there without a drafter too."""
    reading = read_page(page("llama_cpp_plain"), 0.0)
    assert sum(one.value for one in reading.cycles.values()) == 0.0
    assert sum(one.value for one in reading.output_tokens.values()) > 0.0
    assert reading.speculates is None
    assert read_page(page("llama_cpp_ngram_start"), 0.0).speculates is None


def test_positions_of_llama_cpp_that_appear_later_count_from_zero() -> None:
    start = page("llama_cpp_ngram_start")
    assert "per_pos_total{" not in start
    assert len(between(start, page("llama_cpp_ngram")).by_position) == 8


def test_another_process_of_llama_cpp_counts_from_zero_though_its_counters_are_higher() -> None:
    before = read_page(page("llama_cpp_ngram"), 0.0, process="73109941762")
    after = read_page(changed(page("llama_cpp_ngram"), "llamacpp:tokens_predicted_total", 500.0), 9.0, process="7399")
    found = difference(before, after)
    assert found is not None
    assert (found.output_tokens, found.restarted) == (500.0, True)


def test_report_49_tokenspeed_1443_sglangs_accept_length_has_the_bonus_token_in_it() -> None:
    found = between(page("sglang_eagle_start"), page("sglang_eagle"))
    assert found.cycles == 700.0
    # Its two engines tell 2.6 and 2.4 tokens a cycle: 1.5 of them are drafts.
    assert found.accepted == pytest.approx(700 * 1.5)
    assert found.emitted_per_cycle == pytest.approx(2.5)


def test_report_49_trtllm_14724_drafted_tokens_are_not_made_up_from_the_longest_block() -> None:
    pages = page("sglang_eagle_start"), page("sglang_eagle")
    assert between(*pages).drafted is None
    assert between(*pages).acceptance is None
    told = between(*pages, full_blocks=True)
    assert told.drafted == 700 * 3
    assert told.acceptance == pytest.approx(0.5)
    adapted = changed(pages[1], "sglang:spec_num_draft_tokens", 2.0)
    assert between(pages[0], adapted, full_blocks=True).drafted is None


def test_a_gauge_of_sglang_weighs_as_many_cycles_as_it_stands_next_to() -> None:
    pages = [page("sglang_eagle_start")]
    for cycles, length in ((1100.0, 4.0), (1900.0, 2.0)):  # 100 cycles at 4 tokens, then 800 at 2
        pages.append(changed(pages[-1], "sglang:spec_verify_calls_total", cycles))
        pages[-1] = changed(pages[-1], "sglang:spec_accept_length", length)
    accepted = [between(*pair).accepted for pair in pairwise(pages)]
    assert accepted == [300.0, 800.0]


def test_an_accept_length_that_is_none_is_no_data() -> None:
    after = changed(page("sglang_eagle"), "sglang:spec_accept_length", 0.0)
    found = between(page("sglang_eagle_start"), after)
    assert (found.accepted, found.emitted_per_cycle) == (None, None)
    assert found.drafting is True


def test_ranks_of_one_sglang_engine_count_once_and_engines_are_summed() -> None:
    text = page("sglang_eagle")
    assert read_page(text, 0.0).running == 5.0
    second_rank = "\n".join(
        line.replace('tp_rank="0"', 'tp_rank="1"') for line in text.split("\n") if line.startswith("sglang:num_running")
    )
    assert read_page(f"{text}{second_rank}\n", 0.0).running == 5.0
    assert read_page(text, 0.0).kv_share == pytest.approx(0.32)


def test_a_page_of_nobody_known_tells_nothing() -> None:
    reading = read_page("up 1\n", 0.0)
    assert reading.engine is EngineKind.UNKNOWN
    assert (reading.speculates, reading.running, reading.output_tokens) == (None, None, {})


def test_another_engine_at_the_same_place_is_no_difference() -> None:
    assert difference(read_page(page("vllm_ngram"), 0.0), read_page(page("llama_cpp_ngram"), 1.0)) is None


def test_a_metric_that_vanished_is_no_data() -> None:
    found = between(page("vllm_ngram"), without(page("vllm_ngram"), "vllm:request_time_per_output_token"))
    assert found.tpot is None
    assert found.ttft is not None


def test_a_page_of_a_server_that_began_earlier_is_another_servers() -> None:
    old, new = read_page(page("vllm_ngram_start"), 0.0), read_page(page("vllm_two_engines"), 1.0)
    assert is_another_server(new, old) is True
    assert is_another_server(old, new) is False
    assert is_another_server(old, read_page(page("vllm_ngram"), 1.0)) is False


@pytest.mark.parametrize("name", ["vllm_ngram", "llama_cpp_ngram", "sglang_eagle"])
@given(data=st.data())
def test_no_page_that_is_broken_anywhere_makes_a_reading_raise(name: str, data: st.DataObject) -> None:
    """Bytes of the samples that are read are lost, doubled or changed; what is left is counted, or is no data."""
    whole = "\n".join(line for line in page(name).split("\n") if "spec" in line or "_seconds_" in line)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 300)))
    junk = data.draw(st.text(alphabet='{}",=_le²+-.0123456789 \n#eaI', max_size=20))
    broken = whole[:start] + junk + whole[end:]
    for pair in ((whole, broken), (broken, whole)):
        delta = difference(read_page(pair[0], 0.0), read_page(pair[1], 1.0))
        if delta is not None:
            assert delta.cycles is None or delta.cycles >= 0
            assert delta.acceptance is None or 0 <= delta.acceptance <= 1


def test_a_bound_or_a_position_that_is_no_number_is_left_out() -> None:
    broken = page("vllm_ngram").replace('position="4"', 'position="²"').replace('le="0.75"', 'le="much"')
    found = between(page("vllm_ngram_start"), broken)
    assert found.by_position == (17.0, 15.0, 12.0, 12.0)
    assert found.ttft is not None
    assert 0.75 not in found.ttft.at_most
    assert found.ttft.at_most[1.0] == 8.0
