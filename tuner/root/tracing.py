"""Traces of the project's workload, taken from the engine; and the same engine with fixed arms, to hold replays against
what happens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.messages import Sampling, Submit
from engine.server.tokenizer import load_tokenizer
from engine.server.tools import Message
from policies import PLAIN, PLAIN_ARM, Arm, Context, CycleStats, EngineInfo, FixedPolicy, RequestFeatures, SamplingClass
from tuner.replay.recording import RecordingError
from tuner.replay.trace import DraftTrace, TracedRequest
from tuner.root.options import engine_options
from tuner.settings import Settings
from tuner.workload import Prompt

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Task:
    """A request of the workload; asked again, it gives the same text."""

    prompt: Prompt
    seed: int
    tokens: int
    """Longest output, the first token included."""


class TracedWorkload:
    """The workload on an engine of its own, in this process. Its verification is coupled: every arm gives one text."""

    def __init__(self, settings: Settings, progress: Callable[[str], None]) -> None:
        """Start the engine. Raises what `engine_options` does, and EngineStartError."""
        from engine.build import EngineBuildError  # the tensor library, which a server leaves to its engine process
        from engine.process import EngineStartError
        from engine.tracing import TracingEngine

        options = engine_options(settings)
        try:
            self._engine: TracingEngine = TracingEngine(options, progress)
        except EngineBuildError as error:
            raise EngineStartError(str(error)) from error
        self.info: EngineInfo = self._engine.info
        self._tokenizer = load_tokenizer(Path(options.model_path), self.info.vocabulary, self.info.context_limit)
        self._key = 0

    @property
    def drafters(self) -> tuple[str, ...]:
        """Without `PLAIN`."""
        return tuple(name for name in self.info.drafters if name != PLAIN)

    def record(self, tasks: Sequence[Task]) -> list[TracedRequest | None]:
        """What every drafter would have made of each task; None for one that ends with its first token.

        Raises RecordingError where one cannot run.
        """
        from engine.tracing import RefusedError

        submits = [self._submit(task, PLAIN_ARM) for task in tasks]
        try:
            found = {one.request_key: one for one in self._engine.record(submits)}
        except RefusedError as error:
            raise RecordingError(str(error)) from error
        return [
            None
            if submit.request_key not in found
            else TracedRequest(
                route=task.prompt.route,
                language=task.prompt.language,
                prompt_tokens=found[submit.request_key].prompt_tokens,
                output_tokens=found[submit.request_key].output_tokens,
                drafts={
                    name: DraftTrace(one.offered, one.kept, one.confidence)
                    for name, one in found[submit.request_key].drafts.items()
                },
            )
            for task, submit in zip(tasks, submits, strict=True)
        ]

    def serve(self, tasks: Sequence[Task], arm: Arm, load: int) -> list[CycleStats]:
        """The cycles of the tasks under one arm, forced, with `load` of them running at a time."""
        return self._engine.serve([self._submit(task, arm) for task in tasks], load)

    def _submit(self, task: Task, arm: Arm) -> Submit:
        prompt = task.prompt
        self._key += 1
        messages = [Message(message["role"], message["content"]) for message in prompt.messages]
        tokens = tuple(self._tokenizer.encode_chat(messages, None, {}))
        features = RequestFeatures(SamplingClass.GREEDY, False, len(tokens), task.tokens)
        return Submit(
            request_key=self._key,
            prompt=tokens,
            sampling=Sampling(seed=task.seed, **prompt.sampling),  # type: ignore[arg-type]
            max_tokens=task.tokens,
            stop_token_ids=self._tokenizer.stop_token_ids,
            stops=(),
            decision=FixedPolicy(arm).decide(Context(self.info.model, prompt.route, prompt.language), features),
            submitted_at=0.0,
        )
