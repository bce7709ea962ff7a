/* A row's target_probs after temperature, top-k, top-p and min-p, and a sample of them: the twin of
 * processors.target_scores and gumbel_race.race, token for token. */
#ifndef PACELINE_SAMPLE_H
#define PACELINE_SAMPLE_H

#include <stdint.h>

#include "philox.h"

typedef struct {
    float temperature;
    int32_t top_k;     /* 0: every token */
    double top_p;      /* 1 and above: every token */
    float min_score;   /* log min-p; -infinity: every token */
    double mass_unit;  /* what the most likely token counts in top-p: see mass_unit in processors.py */
} SampleSettings;

/* How `sample_scores` ends, when it does not return a count. */
enum { SAMPLE_WHOLE = -1, SAMPLE_NOTHING = -2 };

/* (logit - largest) / temperature of the tokens that the settings keep: their number, with their ids, rising, in
 * `token_ids` and their scores in `scores` (both [vocabulary]); SAMPLE_WHOLE where all are kept and no ids were
 * written; SAMPLE_NOTHING where the largest of the logits is not finite. `scratch` has room for [3 vocabulary]. */
int64_t sample_scores(const float *logits, int vocabulary, const SampleSettings *settings, int64_t *token_ids,
                      float *scores, float *scratch);

/* The token with the largest sum of its score and its noise, the lowest of equals. `token_ids` rise; NULL stands for
 * 0, 1, 2 ... The largest of the scores is 0. */
int64_t sample_race(const float *scores, const int64_t *token_ids, int64_t count, const Noise *noise);

/* The two in one; `token_ids` and `scores` are scratch too. A token, or SAMPLE_NOTHING. */
int64_t sample_token(const float *logits, int vocabulary, const SampleSettings *settings, const Noise *noise,
                     int64_t *token_ids, float *scores, float *scratch);

/* Sum of e^score; the order of the sum is fixed. */
double sample_mass(const float *scores, int64_t count);

/* Uniforms of the drafts 0 .. count-1, from the words of the counters (draft, position, choice, stream). */
void sample_uniforms(const Noise *noise, int count, double *uniforms);

#endif
