/* Noise of a token, as kernels/philox.py makes it. */
#ifndef PACELINE_PHILOX_H
#define PACELINE_PHILOX_H

#include <math.h>
#include <stdint.h>

#define PHILOX_EVEN 0xD2511F53u
#define PHILOX_ODD 0xCD9E8D57u
#define PHILOX_KEY_STEP0 0x9E3779B9u
#define PHILOX_KEY_STEP1 0xBB67AE85u

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

/* Standard Gumbel noise of the upper 24 bits of a word. */
static inline float gumbel(uint32_t bits) { return (float)-log(-log((bits + 0.5) * 0x1p-24)); }

/* Standard Gumbel noise of each token. */
void gumbel_noise(const Noise *noise, const int32_t *token_ids, int count, float *out);

#endif
