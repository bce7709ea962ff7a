"""What each reason of a decision means, in a sentence for people."""

from collections.abc import Mapping
from types import MappingProxyType

from policies.types import Reason

RESERVED = frozenset(
    {
        Reason.GUARDRAIL_LATENCY,
        Reason.GUARDRAIL_TTFT,
        Reason.GUARDRAIL_ERRORS,
        Reason.GUARDRAIL_VALIDITY,
        Reason.GUARDRAIL_MEMORY,
        Reason.FREEZE,
        Reason.FEATURE_UNSUPPORTED,
        Reason.SHORT_OUTPUT,
        Reason.TELEMETRY_MISSING,
        Reason.STALE_POLICY,
        Reason.STORE_UNAVAILABLE,
    }
)
"""Part of the finite list, but given by nothing yet."""

MEANINGS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.KILL_SWITCH: "An operator switched speculation off, for the route or everywhere.",
        Reason.PINNED: "An operator pinned drafter and block length until an expiry.",
        Reason.GUARDRAIL_LATENCY: "Time per output token broke its bound on this route.",
        Reason.GUARDRAIL_TTFT: "Time to the first token broke its bound on this route.",
        Reason.GUARDRAIL_ERRORS: "Too many requests failed on this route.",
        Reason.GUARDRAIL_VALIDITY: "Structured outputs parsed less often than in plain serving.",
        Reason.GUARDRAIL_MEMORY: "Memory ran short.",
        Reason.CLIENT_OPT_OUT: "The client sent x-paceline-mode: off.",
        Reason.FREEZE: "An operator froze what is learned here.",
        Reason.SWITCHBACK: "A plain window is measuring the baseline.",
        Reason.EXPLORE: "Nothing is known here yet; a drafter is being tried.",
        Reason.CANARY: "The learned policy, on the share of requests drawn for it.",
        Reason.LEARNED: "The learned policy.",
        Reason.ROUTE_DEFAULT: "The configuration of the route says so.",
        Reason.ENGINE_DEFAULT: "Nothing is configured or learned for the route; the engine's own default.",
        Reason.FEATURE_UNSUPPORTED: "The request asks for something that cannot be verified inside a block.",
        Reason.SHORT_OUTPUT: "The output is too short to gain.",
        Reason.TELEMETRY_MISSING: "The engine does not report what it accepted.",
        Reason.STALE_POLICY: "What was learned belongs to another model, drafter or build.",
        Reason.STORE_UNAVAILABLE: "The store could not be read when the policy was needed.",
        Reason.ERROR: "The decision failed; the request is served plain, and the log says why.",
    }
)
"""One sentence for each reason; `explain` and the README print it."""
