"""`kernels.sampler.Sampler` in C: a sampled row of a real vocabulary in tens of microseconds."""

import ctypes
import math
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import numpy as np
from numpy.typing import NDArray

from kernels.philox import Stream
from kernels.processors import Row, RowError, TargetScores, TokenIds, mass_unit
from kernels.sampling import Sampling

_WHOLE, _NOTHING = -1, -2
"""SAMPLE_WHOLE and SAMPLE_NOTHING of sample.h."""


class _Settings(Structure):
    """``SampleSettings`` of sample.h."""

    _fields_ = (
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_double),
        ("min_score", c_float),
        ("mass_unit", c_double),
    )


class _Noise(Structure):
    """``Noise`` of philox.h."""

    _fields_ = (("seed", c_uint64), ("choice", c_uint32), ("position", c_uint32), ("stream", c_uint32))


class NativeSampler:
    """Over a library of `kernels.native_library`. It keeps scratch memory: one thread at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._make_room(1)
        for name, (result, arguments) in _SIGNATURES.items():
            entry = getattr(library, name)
            entry.restype = result
            entry.argtypes = arguments

    def scores(self, logits: Row, sampling: Sampling) -> TargetScores:
        row = self._contiguous(logits)
        count: int = self._library.sample_scores(
            row.ctypes.data, row.size, byref(_settings(sampling, row.size)), *self._scratch
        )
        if count == _WHOLE:
            return TargetScores(None, self._scores[: row.size].copy())
        self._refuse(count, row)
        return TargetScores(self._token_ids[:count].copy(), self._scores[:count].copy())

    def race(
        self,
        scores: NDArray[np.float32],
        token_ids: TokenIds | None,
        sampling: Sampling,
        position: int,
        stream: int = Stream.COUPLED,
    ) -> int:
        scores = np.ascontiguousarray(scores)
        ids = None if token_ids is None else np.ascontiguousarray(token_ids, dtype=np.int64)
        token: int = self._library.sample_race(
            scores.ctypes.data,
            None if ids is None else ids.ctypes.data,
            scores.size,
            byref(_noise(sampling, position, stream)),
        )
        return token

    def token(self, logits: Row, sampling: Sampling, position: int) -> int:
        row = self._contiguous(logits)
        token: int = self._library.sample_token(
            row.ctypes.data,
            row.size,
            byref(_settings(sampling, row.size)),
            byref(_noise(sampling, position, Stream.COUPLED)),
            *self._scratch,
        )
        self._refuse(token, row)
        return token

    def mass(self, scores: NDArray[np.float32]) -> float:
        scores = np.ascontiguousarray(scores)
        mass: float = self._library.sample_mass(scores.ctypes.data, scores.size)
        return mass

    def uniforms(self, sampling: Sampling, position: int, count: int) -> NDArray[np.float64]:
        uniforms = np.empty(count)
        self._library.sample_uniforms(byref(_noise(sampling, position, Stream.ACCEPTANCE)), count, uniforms.ctypes.data)
        return uniforms

    def _contiguous(self, logits: Row) -> Row:
        if logits.size > self._scores.size:
            self._make_room(logits.size)
        return np.ascontiguousarray(logits)

    def _make_room(self, vocabulary: int) -> None:
        self._scores: Row = np.empty(vocabulary, dtype=np.float32)
        self._token_ids: TokenIds = np.empty(vocabulary, dtype=np.int64)
        self._work = np.empty(3 * vocabulary, dtype=np.float32)
        self._scratch = (self._token_ids.ctypes.data, self._scores.ctypes.data, self._work.ctypes.data)

    def _refuse(self, result: int, row: Row) -> None:
        if result == _NOTHING:
            raise RowError(
                f"The target's logits have the maximum {row.max()}, which no sampling can use; check its weights.",
                fault=True,
            )


def _settings(sampling: Sampling, vocabulary: int) -> _Settings:
    least = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
    return _Settings(sampling.temperature, sampling.top_k, sampling.top_p, least, mass_unit(vocabulary))


def _noise(sampling: Sampling, position: int, stream: int) -> _Noise:
    return _Noise(sampling.seed & 0xFFFFFFFFFFFFFFFF, sampling.choice, position, stream)


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "sample_scores": (c_int64, (c_void_p, c_int, POINTER(_Settings), c_void_p, c_void_p, c_void_p)),
    "sample_race": (c_int64, (c_void_p, c_void_p, c_int64, POINTER(_Noise))),
    "sample_token": (c_int64, (c_void_p, c_int, POINTER(_Settings), POINTER(_Noise), c_void_p, c_void_p, c_void_p)),
    "sample_mass": (c_double, (c_void_p, c_int64)),
    "sample_uniforms": (None, (POINTER(_Noise), c_int, c_void_p)),
}
