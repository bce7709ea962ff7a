#include "philox.h"

void philox_words(const Noise *noise, uint32_t block, uint32_t words[4]) {
    uint32_t c0 = block, c1 = noise->position, c2 = noise->choice, c3 = noise->stream;
    uint32_t k0 = (uint32_t)noise->seed, k1 = (uint32_t)(noise->seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t even = (uint64_t)PHILOX_EVEN * c0, odd = (uint64_t)PHILOX_ODD * c2;
        const uint32_t n0 = (uint32_t)(odd >> 32) ^ c1 ^ k0, n2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)odd;
        c3 = (uint32_t)even;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_KEY_STEP0;
        k1 += PHILOX_KEY_STEP1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

void gumbel_noise(const Noise *noise, const int32_t *token_ids, int count, float *out) {
    uint32_t words[4];
    int64_t known = -1;
    for (int i = 0; i < count; i++) {
        const uint32_t block = (uint32_t)token_ids[i] >> 2;
        if (block != known) philox_words(noise, block, words);
        known = block;
        const uint32_t bits = words[token_ids[i] & 3] >> 8; /* 24 bits: float32 holds the midpoint of each cell */
        out[i] = gumbel(bits);
    }
}
