"""Drafting in C (``kernels/native/draft.c``) from Python: its structures, its memory and its calls."""

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.native_library import Model, Pass
from kernels.native_threads import NativeThreads
from kernels.sampling import GREEDY_TEMPERATURE, DraftProbs, Sampling, Verifier

CANDIDATES = 512
"""CANDIDATES of draft_choice.h: the most tokens that one draft's draft_probs name."""


class _DraftModel(Structure):
    _fields_ = (
        ("embedder", POINTER(Model)),
        ("layers", POINTER(Model)),
        ("head", c_void_p),
        ("outputs", c_int),
        ("token_ids", c_void_p),
        ("join", c_void_p),
        ("embedding_norm", c_void_p),
        ("feature_norm", c_void_p),
        ("features", c_void_p),
    )


class DraftSampling(Structure):
    """``DraftSampling`` of draft_choice.h."""

    _fields_ = (
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
        ("own_noise", c_int32),
        ("seed", c_uint64),
        ("choice", c_uint32),
        ("position", c_uint32),
    )


class DraftChoice(Structure):
    """``DraftChoice`` of draft_choice.h."""

    _fields_ = (("token", c_int32), ("confidence", c_float), ("candidates", c_int32))


class _Draft(Structure):
    _fields_ = (
        ("pass_", Pass),
        ("lengths", c_void_p),
        ("samplings", c_void_p),
        ("stops", c_void_p),
        ("longest", c_int),
        ("counts", c_void_p),
        ("tokens", c_void_p),
        ("confidences", c_void_p),
        ("candidates", c_void_p),
        ("token_out", c_void_p),
        ("prob_out", c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Join:
    """What a feature head puts before its layer. Tensors are kept alive by their owner."""

    strips: Tensor
    """[hidden, 2 hidden], packed."""
    embedding_norm: Tensor
    """[hidden] float32."""
    feature_norm: Tensor
    features: Tensor
    """The target's, [blocks * 16, hidden]."""


@dataclass(frozen=True, slots=True)
class DraftPart:
    """One sequence's part of a draft."""

    token_ids: Sequence[int]
    """To catch up with, the text's last token at the end when something is to be drafted."""
    start: int
    """Position of the first of them."""
    blocks: Sequence[int]
    """Block table that covers the tokens, and every draft but the last."""
    length: int
    """Tokens to draft; 0 only catches up."""
    sampling: Sampling
    position: int
    """Index in the output of the first draft."""
    stop: float
    """The draft ends before the product of its confidences falls under this."""
    temperature: float = 1.0
    """What the sampling's temperature is multiplied by while drafting."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """What came of a part."""

    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    """Of each token, see draft_choice.h; without any, that of the first position: NaN where its logits are not all
    finite, 0.0 where nothing was asked for."""
    draft_probs: tuple[DraftProbs, ...] | None
    """Where the tokens were drawn with noise of the drafter's own."""


class NativeDraft:
    """A drafter's arithmetic: its layers over its own cache, one call for all sequences and all steps."""

    def __init__(
        self,
        native: NativeThreads,
        embedder: Model,
        layers: Model,
        outputs: int,
        token_ids: Tensor | None,
        join: Join | None,
        *,
        keep: object = None,
    ) -> None:
        """
        Args:
            native: threads and library.
            embedder: the model whose embedding reads the tokens.
            layers: the drafter's own; its head gives the first `outputs` of its rows.
            outputs: rows of the head that count.
            token_ids: int32 [outputs], what each row stands for; None: row i is token i.
            join: of a feature head.
            keep: whoever owns the memory of `layers`.
        """
        self._native = native
        self._library = bound(native.library)
        self._kept = (embedder, layers, token_ids, join, keep)
        self._model = _DraftModel(
            embedder=ctypes.pointer(embedder),
            layers=ctypes.pointer(layers),
            head=layers.head,
            outputs=outputs,
            token_ids=None if token_ids is None else token_ids.data_ptr(),
        )
        if join is not None:
            self._model.join = join.strips.data_ptr()
            self._model.embedding_norm = join.embedding_norm.data_ptr()
            self._model.feature_norm = join.feature_norm.data_ptr()
            self._model.features = join.features.data_ptr()
        self._vocabulary = embedder.vocabulary
        self._workspace = self._library.draft_workspace_create()
        weakref.finalize(self, self._library.draft_workspace_destroy, self._workspace)

    def draft(self, parts: Sequence[DraftPart]) -> list[Drafted]:
        """Catch up and draft.

        MemoryError when there is not enough for the pass. Blocks and positions are the caller's to check.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        first_rows = [0]
        table_starts: list[int] = []
        block_tables: list[int] = []
        samplings = (DraftSampling * len(parts))()
        own_noise = False
        for index, part in enumerate(parts):
            token_ids.extend(part.token_ids)
            positions.extend(range(part.start, part.start + len(part.token_ids)))
            first_rows.append(len(token_ids))
            table_starts.append(len(block_tables))
            block_tables.extend(part.blocks)
            samplings[index] = draft_sampling(part.sampling, part.position, part.temperature)
            own_noise = own_noise or bool(samplings[index].own_noise)
        tokens = np.array(token_ids, dtype=np.int32)
        # A target may have rows for tokens that a drafter of padded width lacks; nobody drafts well behind them.
        tokens[tokens >= self._vocabulary] = 0
        arrays = (
            tokens,
            np.array(positions, dtype=np.int32),
            np.array(first_rows, dtype=np.int32),
            np.array(table_starts, dtype=np.int32),
            np.array(block_tables, dtype=np.int32),
        )
        lengths = np.array([part.length for part in parts], dtype=np.int32)
        stops = np.array([part.stop for part in parts], dtype=np.float32)
        longest = max(1, int(lengths.max()))
        counts = np.zeros(len(parts), dtype=np.int32)
        drafted = np.zeros((len(parts), longest), dtype=np.int32)
        confidences = np.zeros((len(parts), longest), dtype=np.float32)
        task = _Draft(
            pass_=Pass(len(token_ids), len(parts), 0, *(array.ctypes.data for array in arrays), None),
            lengths=lengths.ctypes.data,
            samplings=ctypes.addressof(samplings),
            stops=stops.ctypes.data,
            longest=longest,
            counts=counts.ctypes.data,
            tokens=drafted.ctypes.data,
            confidences=confidences.ctypes.data,
        )
        candidates = token_out = prob_out = None
        if own_noise:
            candidates = np.zeros((len(parts), longest), dtype=np.int32)
            token_out = np.empty((len(parts), longest, CANDIDATES), dtype=np.int32)
            prob_out = np.empty((len(parts), longest, CANDIDATES), dtype=np.float32)
            task.candidates = candidates.ctypes.data
            task.token_out = token_out.ctypes.data
            task.prob_out = prob_out.ctypes.data
        if self._library.draft(self._model, self._native.handle, self._workspace, task):
            raise MemoryError(f"no memory for drafting over {len(token_ids)} rows")
        results = []
        for index, count in enumerate(counts.tolist()):
            probs = None
            if candidates is not None and token_out is not None and prob_out is not None and samplings[index].own_noise:
                probs = tuple(
                    DraftProbs(token_out[index, step, :kept].astype(np.int64), prob_out[index, step, :kept].copy())
                    for step, kept in enumerate(candidates[index, :count].tolist())
                )
            sure = tuple(confidences[index, : max(1, count)].tolist())
            results.append(Drafted(tuple(drafted[index, :count].tolist()), sure, probs))
        return results


def draft_sampling(sampling: Sampling, position: int, temperature: float = 1.0) -> DraftSampling:
    """A request's sampling as drafting applies it; `position` is that of the first draft in the output.

    The sampling's temperature is multiplied by `temperature`. A greedy request is drafted greedily whatever it is, and
    where the product is as good as greedy so is any other: its drafts are then chosen without noise of their own.
    """
    drafting = sampling.temperature * temperature
    own_noise = sampling.verifier is not Verifier.COUPLED and not sampling.greedy and drafting >= GREEDY_TEMPERATURE
    return DraftSampling(
        temperature=0.0 if sampling.greedy else drafting,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        top_k=sampling.top_k,
        own_noise=own_noise,
        seed=sampling.seed & 0xFFFFFFFFFFFFFFFF,
        choice=sampling.choice,
        position=position,
    )


def head_rows(native: NativeThreads, model: Model, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a packed head, [n, hidden] in `dtype`, which is the model's; `token_ids` is int32 [n]."""
    rows = torch.empty(token_ids.numel(), model.hidden, dtype=dtype)
    if bound(native.library).head_rows(model, token_ids.data_ptr(), token_ids.numel(), rows.data_ptr()):
        raise MemoryError("no memory for the rows of a head")
    return rows


def native_gumbel(native: NativeThreads, words: tuple[int, int, int, int], token_ids: NDArray[np.int32]) -> Tensor:
    """Gumbel noise as C makes it for (seed, choice, position, stream), float32 [n]."""
    out = torch.empty(token_ids.size, dtype=torch.float32)
    noise = _Noise(*words)
    bound(native.library).gumbel_noise(noise, token_ids.ctypes.data, token_ids.size, out.data_ptr())
    return out


class _Noise(Structure):
    _fields_ = (("seed", c_uint64), ("choice", c_uint32), ("position", c_uint32), ("stream", c_uint32))


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "draft_workspace_create": (c_void_p, ()),
    "draft_workspace_destroy": (None, (c_void_p,)),
    "draft": (c_int, (POINTER(_DraftModel), c_void_p, c_void_p, POINTER(_Draft))),
    "head_rows": (c_int, (POINTER(Model), c_void_p, c_int, c_void_p)),
    "gumbel_noise": (None, (POINTER(_Noise), c_void_p, c_int, c_void_p)),
    "choose_draft": (
        DraftChoice,
        (POINTER(DraftSampling), c_int, c_void_p, c_int, c_void_p, c_void_p, c_void_p),
    ),
}


def bound(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the signatures of drafting."""
    for function, (result, arguments) in _SIGNATURES.items():
        entry = getattr(library, function)
        entry.restype = result
        entry.argtypes = arguments
    return library
