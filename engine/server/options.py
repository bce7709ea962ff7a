"""How the data path presents itself."""

from dataclasses import dataclass

from kernels.sampling import Verifier, Watermark


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the data path presents itself."""

    model: str
    """The name that requests must give."""
    routes: frozenset[str]
    """Routes that ``x-paceline-route`` may name; everything else is `policies.OTHER_ROUTE`."""
    context_limit: int
    """Tokens of prompt and output together; the engine's."""
    trust_headers: bool = True
    """Whether route, language and debug headers count; not where anybody may send them."""
    verifier: Verifier = Verifier.COUPLED
    """Where a request names none."""
    admin_url: str | None = None
    """Where metrics, probes and the admin API are, for those who look for them here."""
    watermark: Watermark | None = None
    """On every output; a request then may not give its own."""
