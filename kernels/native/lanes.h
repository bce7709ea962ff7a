/* Sixteen float32 lanes, and the arithmetic on them that every kernel shares.
 *
 * Vector types are the compiler's own, so that one source serves every processor; where AVX512-BF16 is there, the
 * product of bfloat16 pairs uses its instruction. Every function works lane by lane, or sums lanes in one fixed order:
 * a result never depends on what else is computed beside it.
 */
#ifndef PACELINE_LANES_H
#define PACELINE_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define PACELINE_PAIR_PRODUCT 1
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
/* The same, at any address. */
typedef float LooseFloats __attribute__((vector_size(64), aligned(4)));
typedef uint32_t LooseWords __attribute__((vector_size(64), aligned(4)));
typedef uint16_t LooseHalves __attribute__((vector_size(32), aligned(2)));

INLINE Floats load(const float *from) { return (Floats)*(const LooseFloats *)from; }
INLINE void store(float *to, Floats value) { *(LooseFloats *)to = (LooseFloats)value; }
INLINE Words load_words(const uint32_t *from) { return (Words)*(const LooseWords *)from; }
INLINE Floats spread(float value) {
    return (Floats){value, value, value, value, value, value, value, value,
                    value, value, value, value, value, value, value, value};
}
INLINE Words spread_word(uint32_t value) {
    return (Words){value, value, value, value, value, value, value, value,
                   value, value, value, value, value, value, value, value};
}
INLINE Floats choose(Ints where, Floats yes, Floats no) {
    return (Floats)(((Ints)yes & where) | ((Ints)no & ~where));
}
#ifdef __AVX512F__
INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }
INLINE Floats smaller(Floats a, Floats b) { return choose(a < b, a, b); }
#endif

INLINE float lanes_sum(Floats value) {
    float lane[LANES];
    store(lane, value);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}
INLINE float lanes_largest(Floats value) {
    float lane[LANES];
    store(lane, value);
    for (int i = 1; i < LANES; i++) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

/* e to the x, within 2 units in the last place for x in [-87.3, 88.3] and clamped to that range.
 * Range reduction and coefficients: Cephes, single/expf.c (S. Moshier). */
INLINE Floats exponential(Floats x) {
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    x = smaller(larger(x, spread(-87.3f)), spread(88.3f));
    Floats shifted = x * 1.44269504088896341f + to_integer;
    Floats whole = shifted - to_integer;
    Floats r = x - whole * 0.693359375f;
    r = r + whole * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#ifdef __AVX512F__
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return p * (Floats)(((Ints)shifted - (Ints)spread(to_integer) + 127) << 23);
#endif
}

/* Round to bfloat16, nearest even. */
INLINE void store_bfloat16(uint16_t *to, Floats value) {
#ifdef PACELINE_PAIR_PRODUCT
    *(LooseHalves *)to = (LooseHalves)_mm512_cvtneps_pbh((__m512)value);
#else
    Words bits = (Words)value;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(LooseHalves *)to = (LooseHalves)__builtin_convertvector(bits, Halves);
#endif
}
INLINE uint16_t bfloat16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE float float_of(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

#endif
