/* Noise of a token, as kernels/philox.py makes it. */
#ifndef PACELINE_PHILOX_H
#define PACELINE_PHILOX_H

#include <stdint.h>

/* The low byte of `stream`: see Stream in philox.py. */
enum { STREAM_COUPLED = 0, STREAM_DRAFT = 1 };

typedef struct {
    uint64_t seed;
    uint32_t choice;
    uint32_t position;
    uint32_t stream;
} Noise;

/* The four words of the counter (block, position, choice, stream): those of tokens 4 block .. 4 block + 3. */
void philox_words(const Noise *noise, uint32_t block, uint32_t words[4]);

/* Standard Gumbel noise of each token. */
void gumbel_noise(const Noise *noise, const int32_t *token_ids, int count, float *out);

#endif
