#include "draft_choice.h"

#include <math.h>
#include <stdlib.h>

#include "lanes.h"

#define GREEDY_TEMPERATURE 1e-5f
/* An output whose probability is under e^-10 of the largest is no candidate: with its like it holds a thousandth. */
#define DEPTH 10.0f

typedef struct {
    int32_t output;
    float score; /* (logit - largest) / temperature */
} Candidate;

/* The largest value and the first place where it is; NaN where any of them is NaN or infinite. */
static float largest_of(const float *values, int count, int *where) {
    Floats most = spread(-INFINITY), zeros = spread(0.0f); /* 0 times what is no finite number is NaN */
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Floats some = load(values + i);
        most = larger(most, some);
        zeros += some * 0.0f;
    }
    float largest = lanes_largest(most), zero = lanes_sum(zeros);
    for (; i < count; i++) {
        largest = values[i] > largest ? values[i] : largest;
        zero += values[i] * 0.0f;
    }
    *where = 0;
    if (isnan(zero)) return NAN;
    for (i = 0; i < count - 1 && values[i] != largest; i++) {
    }
    *where = i;
    return largest;
}

/* Sum of e^((value - largest) * scale). */
static float mass_of(const float *values, int count, float largest, float scale) {
    Floats total = spread(0.0f);
    int i = 0;
    for (; i + LANES <= count; i += LANES) total += exponential((load(values + i) - largest) * scale);
    float mass = lanes_sum(total);
    for (; i < count; i++) mass += expf((values[i] - largest) * scale);
    return mass;
}

/* Outputs within `depth` of the largest, in rising order; a smaller depth where they are more than CANDIDATES. */
static int collect(const float *logits, int outputs, float largest, float scale, float depth, Candidate *found) {
    for (;; depth *= 0.7f) {
        const float least = largest - depth / scale;
        int count = 0;
        for (int first = 0; first < outputs && count <= CANDIDATES; first += LANES) {
            if (first + LANES <= outputs) {
                Ints reached = load(logits + first) >= spread(least);
                int any = 0;
                for (int lane = 0; lane < LANES; lane++) any |= reached[lane];
                if (!any) continue;
            }
            for (int i = first; i < outputs && i < first + LANES; i++)
                if (logits[i] >= least) {
                    if (count < CANDIDATES) found[count] = (Candidate){i, (logits[i] - largest) * scale};
                    count++;
                }
        }
        if (count <= CANDIDATES) return count;
        if (depth < 1e-3f) return CANDIDATES; /* hundreds of equals: the first of them */
    }
}

static int falling(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Keep what top-k and top-p keep, in the same order. `mass` is that of all outputs. */
static int truncate(const DraftSampling *sampling, Candidate *candidates, int count, float mass) {
    const int some = sampling->top_k > 0 && sampling->top_k < count;
    if (!some && sampling->top_p >= 1.0f) return count;
    float scores[CANDIDATES];
    for (int i = 0; i < count; i++) scores[i] = candidates[i].score;
    qsort(scores, (size_t)count, sizeof(float), falling);
    int kept = some ? sampling->top_k : count;
    if (sampling->top_p < 1.0f) {
        float total = mass, reached = 0.0f;
        if (some) {
            total = 0.0f;
            for (int i = 0; i < kept; i++) total += expf(scores[i]);
        }
        int needed = 0;
        while (needed < kept && reached < sampling->top_p * total) reached += expf(scores[needed++]);
        kept = needed > 0 ? needed : 1;
    }
    const float least = scores[kept - 1];
    int left = 0;
    for (int i = 0; i < count; i++)
        if (candidates[i].score >= least) candidates[left++] = candidates[i];
    return left;
}

DraftChoice choose_draft(const DraftSampling *sampling, int step, const float *logits, int outputs,
                         const int32_t *token_ids, int32_t *token_out, float *prob_out) {
    int best;
    const float largest = largest_of(logits, outputs, &best);
    if (isnan(largest)) return (DraftChoice){token_ids ? token_ids[0] : 0, NAN, 0};
    const float mass = mass_of(logits, outputs, largest, 1.0f);
    const DraftChoice greedy = {token_ids ? token_ids[best] : best, 1.0f / mass, 0};
    if (sampling->temperature < GREEDY_TEMPERATURE) return greedy;
    const float scale = 1.0f / sampling->temperature;
    float depth = DEPTH;
    if (sampling->min_p > 0.0f && -logf(sampling->min_p) < depth) depth = -logf(sampling->min_p);
    Candidate candidates[CANDIDATES];
    int32_t tokens[CANDIDATES];
    float noise[CANDIDATES];
    int count = collect(logits, outputs, largest, scale, depth, candidates);
    count = truncate(sampling, candidates, count,
                     sampling->top_p < 1.0f ? mass_of(logits, outputs, largest, scale) : 0.0f);
    if (count == 0) return greedy;
    for (int i = 0; i < count; i++) tokens[i] = token_ids ? token_ids[candidates[i].output] : candidates[i].output;
    Noise source = {sampling->seed, sampling->choice, sampling->position, STREAM_DRAFT | (uint32_t)step << 8};
    if (!sampling->own_noise) {
        source.position += (uint32_t)step;
        source.stream = STREAM_COUPLED;
    }
    gumbel_noise(&source, tokens, count, noise);
    int chosen = 0;
    for (int i = 1; i < count; i++)
        if (candidates[i].score + noise[i] > candidates[chosen].score + noise[chosen]) chosen = i;
    if (sampling->own_noise) {
        float total = 0.0f, most = 0.0f;
        for (int i = 0; i < count; i++) total += prob_out[i] = expf(candidates[i].score);
        for (int i = 0; i < count; i++) {
            token_out[i] = tokens[i];
            prob_out[i] /= total;
            most = prob_out[i] > most ? prob_out[i] : most;
        }
        return (DraftChoice){tokens[chosen], most, count};
    }
    float rest = mass, total = 0.0f, own = 0.0f;
    for (int i = 0; i < count; i++) {
        const float logit = logits[candidates[i].output] - largest;
        const float noisy = expf(logit + sampling->temperature * noise[i]);
        rest -= expf(logit);
        total += noisy;
        if (i == chosen) own = noisy;
    }
    return (DraftChoice){tokens[chosen], own / (total + (rest > 0.0f ? rest : 0.0f)), 0};
}
