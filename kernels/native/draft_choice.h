/* What a drafter proposes at one position, from its logits. */
#ifndef PACELINE_DRAFT_CHOICE_H
#define PACELINE_DRAFT_CHOICE_H

#include <stdint.h>

#include "philox.h"

#define CANDIDATES 512

typedef struct {
    float temperature; /* under 1e-5: the largest logit */
    float top_p, min_p;
    int32_t top_k;
    int32_t own_noise; /* 0: coupled, with the noise of the target's position; 1: drawn from draft_probs */
    uint64_t seed;
    uint32_t choice;
    uint32_t position; /* in the output, of the first token that is drafted */
} DraftSampling;

typedef struct {
    int32_t token;
    float confidence; /* see choose_draft */
    int32_t candidates;
} DraftChoice;

/* The token for `logits` [outputs], output `i` of which stands for token_ids[i], or for token i where that is NULL.
 *
 * Greedy: the largest logit, the lowest of equals; its confidence is its probability. Coupled: argmax(logit /
 * temperature + noise); its confidence is its share in the softmax of logit + temperature * noise, which becomes the
 * greedy one as the temperature falls. Own noise: a draw from draft_probs, whose candidates are left in `token_out` and
 * `prob_out` [CANDIDATES] in rising order of outputs; the confidence is their largest probability, known before the
 * draw. Only outputs that are likely enough to matter are candidates: the drafter may draw from what it likes.
 * Where any logit is NaN or infinite, the confidence is NaN and the token means nothing. */
DraftChoice choose_draft(const DraftSampling *sampling, int step, const float *logits, int outputs,
                         const int32_t *token_ids, int32_t *token_out, float *prob_out);

#endif
