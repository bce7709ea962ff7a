"""The drafters of a running engine: loaded at start or while it serves, and unloaded."""

from collections.abc import Callable, Iterable

from engine.blocks import BLOCK_TOKENS
from engine.decoder import Decoder
from engine.draft_calibration import observe_seconds, time_drafters
from engine.draft_model import load_model_as_drafter
from engine.drafter import Drafter
from engine.drafter_files import NGRAM, DrafterError
from engine.drafter_plan import (
    SUFFIX_SHARED_TOKENS,
    DraftedTarget,
    DrafterPlan,
    check_memory,
    plan_drafter,
)
from engine.fingerprint import of_drafter
from engine.learned_drafter import DRAFT_STOP
from engine.learned_weights import load_learned
from engine.machine_memory import free_bytes
from engine.ngram import NgramDrafter
from engine.suffix import SuffixDrafter
from policies.stats import DraftTiming
from policies.types import PLAIN


class DrafterSet:
    """Drafters by the name that decisions use. `engine.loop` reads `loaded` and alone calls the rest.

    Attributes:
        loaded: the drafters, in the order in which they were loaded; changed in place.
        versions: a fingerprint of each.
    """

    def __init__(
        self,
        decoder: Decoder,
        target: DraftedTarget,
        *,
        ngram_match: tuple[int, int],
        stop: float = DRAFT_STOP,
        slots: int = 0,
        seed: int = 0,
    ) -> None:
        """
        Args:
            decoder: the target, loaded; it keeps its features if feature heads are to be loaded.
            target: the same, as plans know it.
            ngram_match: shortest and longest match of the n-gram drafter.
            stop: `LearnedDrafter`'s.
            slots: sequences that may run together; drafters are timed for up to so many, with 0 not at all.
            seed: of the synthetic sequences that they are timed on.
        """
        self._decoder = decoder
        self._target = target
        self._ngram_match = ngram_match
        self._stop = stop
        self._slots = slots
        self._seed = seed
        self.loaded: dict[str, Drafter] = {}
        self.versions: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What a decision may name, plain first."""
        return (PLAIN, *self.loaded)

    @property
    def memory_bytes(self) -> int:
        return sum(drafter.memory_bytes for drafter in self.loaded.values())

    @property
    def resident_bytes(self) -> dict[str, int]:
        """What each of them holds, used or not."""
        return {name: drafter.memory_bytes for name, drafter in self.loaded.items()}

    def load(self, source: str) -> None:
        """Load what an operator named; cycles wait for it.

        Raises:
            DrafterError: it is there already, cannot be found or read, does not fit, or there is no memory for it.
        """
        plan = plan_drafter(source, self._target)
        if plan.name in self.names:
            raise DrafterError(f"there is a drafter {plan.name!r} already; unload it first, or use another name")
        check_memory(plan, free_bytes())
        self.loaded[plan.name] = self._load(plan)
        self.versions[plan.name] = of_drafter(
            plan,
            ngram_match=self._ngram_match,
            stop=self._stop,
            shared_routes=self._target.suffix_shared_routes,
        )

    def time(
        self, names: Iterable[str], progress: Callable[[str], None] = lambda text: None
    ) -> tuple[DraftTiming, ...]:
        """What a call of each takes, see `engine.draft_calibration`; nobody may be drafting with any of them."""
        if not self._slots:
            return ()
        wanted = set(names)
        return time_drafters(
            {name: drafter for name, drafter in self.loaded.items() if name in wanted},
            slots=self._slots,
            context_limit=self._target.context_limit,
            blocks=self._target.blocks,
            vocabulary=self._target.config.vocab_size,
            seed=self._seed,
            progress=progress,
        )

    def resident_seconds(self) -> dict[str, float]:
        """What each adds to a plain cycle of one sequence by being told of its token."""
        vocabulary = self._target.config.vocab_size
        return {name: observe_seconds(drafter, vocabulary, self._seed) for name, drafter in self.loaded.items()}

    def unload(self, name: str) -> None:
        """Forget a drafter with all that it holds.

        Raises:
            DrafterError: there is none of that name.
        """
        if name not in self.loaded:
            known = ", ".join(self.loaded) or "none"
            raise DrafterError(f"there is no drafter {name!r} to unload; loaded are {known}")
        del self.loaded[name], self.versions[name]

    def _load(self, plan: DrafterPlan) -> Drafter:
        decoder, stop = self._decoder, self._stop
        if plan.learned is not None:
            return load_learned(plan.learned, decoder, memory_bytes=plan.memory_bytes, stop=stop)
        if plan.folder is not None and plan.config is not None:
            return load_model_as_drafter(
                plan.folder, plan.name, plan.config, decoder, memory_bytes=plan.memory_bytes, stop=stop
            )
        context_tokens = self._target.blocks * BLOCK_TOKENS
        if plan.name == NGRAM:
            return NgramDrafter(*self._ngram_match, context_tokens=context_tokens)
        return SuffixDrafter(
            context_tokens=context_tokens,
            shared_routes=self._target.suffix_shared_routes,
            shared_tokens=SUFFIX_SHARED_TOKENS,
        )
