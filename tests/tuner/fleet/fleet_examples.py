"""Real values of the fleet for tests: one exchange, two upstreams, a reading of the data path, a plug-in's word."""

from policies.types import Context, Decision, Reason
from tuner.fleet.types import (
    Capability,
    Effect,
    End,
    EngineKind,
    Exchange,
    Lane,
    Lever,
    ProxyState,
    Upstream,
    UpstreamState,
)
from tuner.fleet.vllm.plugin.messages import State

DECISION = Decision("d", Context("tiny", "chat", "en"), "ngram", 4, True, Reason.LEARNED, 3)
SPECULATES = Upstream(
    name="a",
    url="http://127.0.0.1:8001",
    engine=EngineKind.VLLM,
    version="0.32.0+cpu",
    models=("tiny",),
    speculates=True,
    drafter="ngram",
    block_length=4,
    capabilities=(Capability(Lever.REQUEST_LENGTH, Effect.IGNORED, "asked for 0, and drafting went on"),),
)
PLAIN_POOL = Upstream("b", "http://127.0.0.1:8002", EngineKind.LLAMA_CPP, "b9115-68e7ea3", ("tiny",), speculates=False)
LANES = (Lane("a", "a", "ngram", 4), Lane("b", "b", "none", 0))
STATE = ProxyState(
    upstreams=(
        UpstreamState("a", healthy=True, in_flight=2, failures=0, sentence=""),
        UpstreamState("b", healthy=False, in_flight=0, failures=3, sentence="the connection was refused"),
    ),
    streams=2,
    overhead_seconds={0.0001: 3, 0.0002: 0, 0.001: 1},
    dropped=5,
    chooser_faults=0,
)


def exchange(
    upstream: str = "a",
    lane: str = "a",
    decision: Decision | None = DECISION,
    end: End = End.DONE,
    status: int = 200,
    streamed: bool = True,
    output_tokens: int | None = 33,
) -> Exchange:
    """A generation of a third of a second."""
    return Exchange(
        request_key=1,
        upstream=upstream,
        lane=lane,
        decision=decision,
        path="/v1/chat/completions",
        status=status,
        end=end,
        streamed=streamed,
        arrived_at=1_800_000_000.0,
        first_byte_seconds=0.06 if status else 0.0,
        decode_seconds=0.32 if streamed else 0.0,
        output_tokens=output_tokens,
        prompt_tokens=50,
        cached_tokens=None,
        load=1.5,
        drafts=None,
        overhead_seconds=0.0001,
    )


def plugin_state(steps: int = 10, faults: int = 0, dropped: int = 0, unread: int = 0, steered: bool = True) -> State:
    """What a plug-in says of itself after `steps` steps, to each of which it added 0.1 ms."""
    return State(
        steps=steps,
        faults=faults,
        first_fault="",
        dropped=dropped,
        unread=unread,
        own_seconds=steps * 0.0001,
        policy_version=1,
        steered=steered,
        sentence="",
    )
