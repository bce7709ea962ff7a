#include "sample.h"

#include <math.h>
#include <string.h>

#include "lanes.h"

#define GUMBEL_MAX 17.3287f /* above every value of the noise */
#define SLACK 1e-4f         /* more than float32 can err in a sum of a score and its noise */
#define HEAD_DEPTH 4.0f
#define WIDE 8
#define FEW 256 /* scores that are split one by one */

#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

/* Bit i is set where lane i is. */
INLINE uint32_t lane_bits(Ints where) {
#if defined(__AVX512F__)
    return (uint32_t)_mm512_test_epi32_mask((__m512i)where, (__m512i)where);
#elif defined(__SSE2__)
    __m128 part[4];
    memcpy(part, &where, sizeof part);
    return (uint32_t)(_mm_movemask_ps(part[0]) | _mm_movemask_ps(part[1]) << 4 | _mm_movemask_ps(part[2]) << 8 |
                      _mm_movemask_ps(part[3]) << 12);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= (uint32_t)(where[lane] & 1) << lane;
    return bits;
#endif
}

static const float DEPTHS[] = {1.0f, 2.0f, 4.0f, 8.0f, 16.0f};
enum { DEPTH_COUNT = sizeof DEPTHS / sizeof *DEPTHS };

INLINE Doubles spread_double(double value) {
    return (Doubles){value, value, value, value, value, value, value, value};
}
INLINE Doubles choose_double(Longs where, Doubles yes, Doubles no) {
    return (Doubles)(((Longs)yes & where) | ((Longs)no & ~where));
}
INLINE double doubles_sum(Doubles value) {
    return ((value[0] + value[4]) + (value[2] + value[6])) + ((value[1] + value[5]) + (value[3] + value[7]));
}
INLINE Doubles load_eight(const float *from) {
#if defined(__AVX512F__)
    return (Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX__)
    const __m256d halves[2] = {_mm256_cvtps_pd(_mm_loadu_ps(from)), _mm256_cvtps_pd(_mm_loadu_ps(from + 4))};
    Doubles wide;
    memcpy(&wide, halves, sizeof wide);
    return wide;
#else
    Doubles wide; /* element by element: gcc 12 fails on the vector conversion where it has to split it */
    for (int i = 0; i < WIDE; i++) wide[i] = from[i];
    return wide;
#endif
}

/* e to the x for x <= 0, within 2 units in the last place; below -700 as at -700. The Taylor series after a reduction
 * to half a power of two: its 13th term is below a unit of float64. */
INLINE Doubles exponential_double(Doubles x) {
    const double to_integer = 0x1.8p52;
    x = choose_double((Longs)(x > spread_double(-700.0)), x, spread_double(-700.0));
    Doubles shifted = x * 0x1.71547652b82fep0 + to_integer;
    Doubles whole = shifted - to_integer;
    Longs power = (Longs)shifted - (Longs)spread_double(to_integer);
    Doubles r = (x - whole * 0x1.62e42feep-1) - whole * 0x1.a39ef35793c76p-33;
    Doubles p = r * (1.0 / 479001600.0) + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    return p * (Doubles)((power + 1023) * (1L << 52)); /* a shift, in which GCC 12 fails without AVX-512 */
}

static double exponential_one(float x) {
    float eight[WIDE] = {x};
    return exponential_double(load_eight(eight))[0];
}

/* To the nearest whole number, for values below 2^51. */
INLINE Doubles whole_units(Doubles value) {
    const double to_integer = 0x1.8p52;
    return (value + to_integer) - to_integer;
}

static double units_of(float score, double unit) { return rint(exponential_one(score) * unit); }

double sample_mass(const float *scores, int64_t count) {
    Doubles total = spread_double(0.0);
    int64_t i = 0;
    for (; i + WIDE <= count; i += WIDE) total += exponential_double(load_eight(scores + i));
    double mass = doubles_sum(total);
    for (; i < count; i++) mass += exponential_one(scores[i]);
    return mass;
}

/* NaN where there is one. */
static float largest_of(const float *values, int64_t count) {
    Floats most[4];
    Ints unordered = {0};
    for (int part = 0; part < 4; part++) most[part] = spread(-INFINITY);
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int part = 0; part < 4; part++) {
            const Floats value = load(values + i + part * LANES);
            most[part] = larger(value, most[part]);
            unordered |= value != value;
        }
    float largest = lanes_largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
    if (lane_bits(unordered)) return NAN;
    for (; i < count; i++) {
        if (values[i] != values[i]) return NAN;
        largest = values[i] > largest ? values[i] : largest;
    }
    return largest;
}

/* Keep what is above `least`, and of what equals it the first `quota`. `token_ids` are written where `whole`. */
static int64_t keep(float *scores, int64_t *token_ids, int whole, int64_t count, float least, int64_t quota) {
    int64_t kept = 0;
    for (int64_t first = 0; first < count; first += LANES) {
        uint32_t bits;
        if (first + LANES <= count) {
            bits = lane_bits(load(scores + first) >= spread(least));
        } else {
            bits = 0;
            for (int64_t i = first; i < count; i++) bits |= (uint32_t)(scores[i] >= least) << (i - first);
        }
        for (; bits; bits &= bits - 1) {
            const int64_t i = first + __builtin_ctz(bits);
            if (scores[i] == least && quota-- <= 0) continue;
            token_ids[kept] = whole ? i : token_ids[i];
            scores[kept++] = scores[i];
        }
    }
    return kept;
}

/* The scores from `least` up and under `limit`, into `found`. */
static int64_t gather(const float *scores, int64_t count, float least, float limit, float *found) {
    int64_t kept = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Floats value = load(scores + i);
        for (uint32_t bits = lane_bits((value >= spread(least)) & (value < spread(limit))); bits; bits &= bits - 1)
            found[kept++] = scores[i + __builtin_ctz(bits)];
    }
    for (; i < count; i++)
        if (scores[i] >= least && scores[i] < limit) found[kept++] = scores[i];
    return kept;
}

static int64_t count_least(const float *scores, int64_t count, float least) {
    Ints total = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) total -= load(scores + i) >= spread(least);
    int64_t found = 0;
    for (int lane = 0; lane < LANES; lane++) found += total[lane];
    for (; i < count; i++) found += scores[i] >= least;
    return found;
}

/* Split around the middle of three: above the pivot, equal to it, below it. */
static float split(float *values, int64_t count, int64_t *above, int64_t *equal) {
    const float a = values[0], b = values[count / 2], c = values[count - 1];
    const float pivot = a > b ? (b > c ? b : (a > c ? c : a)) : (a > c ? a : (b > c ? c : b));
    int64_t high = 0, at = 0, low = count;
    while (at < low) {
        const float value = values[at];
        if (value > pivot) {
            values[at++] = values[high];
            values[high++] = value;
        } else if (value < pivot) {
            values[at] = values[--low];
            values[low] = value;
        } else {
            at++;
        }
    }
    *above = high;
    *equal = low - high;
    return pivot;
}

static float kth_largest(const float *scores, int64_t count, int64_t k, float *scratch) {
    float least = -INFINITY;
    for (int depth = DEPTH_COUNT - 1; depth >= 0; depth--)
        if (count_least(scores, count, -DEPTHS[depth]) >= k)
            least = -DEPTHS[depth];
        else
            break;
    int64_t left = gather(scores, count, least, INFINITY, scratch);
    for (float *values = scratch;;) {
        int64_t above, equal;
        const float pivot = split(values, left, &above, &equal);
        if (k <= above) {
            left = above;
        } else if (k <= above + equal) {
            return pivot;
        } else {
            values += above + equal;
            left -= above + equal;
            k -= above + equal;
        }
    }
}

/* What top-p keeps: the scores above `edge`, and the first `quota` of those that equal it. */
typedef struct {
    float edge;
    int64_t quota;
} Nucleus;

/* Mass and number of the scores from each of CUTS limits up. */
enum { CUTS = 5 };
typedef struct {
    double mass[CUTS];
    int64_t count[CUTS];
} Above;

static Above mass_above(const float *scores, const double *masses, int64_t count, const float *cuts) {
    Doubles within[CUTS];
    Longs number[CUTS];
    for (int cut = 0; cut < CUTS; cut++) {
        within[cut] = spread_double(0.0);
        number[cut] = (Longs){0};
    }
    int64_t i = 0;
    for (; i + WIDE <= count; i += WIDE) {
        const Doubles score = load_eight(scores + i);
        Doubles mass;
        memcpy(&mass, masses + i, sizeof mass);
        for (int cut = 0; cut < CUTS; cut++) {
            const Longs in = (Longs)(score >= spread_double(cuts[cut]));
            within[cut] += (Doubles)((Longs)mass & in);
            number[cut] -= in;
        }
    }
    Above above;
    for (int cut = 0; cut < CUTS; cut++) {
        above.mass[cut] = doubles_sum(within[cut]);
        above.count[cut] = 0;
        for (int lane = 0; lane < WIDE; lane++) above.count[cut] += number[cut][lane];
        for (int64_t rest = i; rest < count; rest++)
            if (scores[rest] >= cuts[cut]) {
                above.mass[cut] += masses[rest];
                above.count[cut]++;
            }
    }
    return above;
}

/* `scratch` [3 count] is overwritten: a float64 and a float32 for each score. Mass is in whole units: sums are exact, their order is free.
 * Cuts close in on the edge until few scores are left to be split. */
static Nucleus nucleus(const float *scores, int64_t count, double top_p, double unit, float *scratch) {
    double *masses = (double *)scratch;
    scratch += 2 * count;
    Doubles whole = spread_double(0.0);
    int64_t i = 0;
    for (; i + WIDE <= count; i += WIDE) {
        const Doubles mass = whole_units(exponential_double(load_eight(scores + i)) * unit);
        memcpy(masses + i, &mass, sizeof mass);
        whole += mass;
    }
    double total = doubles_sum(whole);
    for (; i < count; i++) total += masses[i] = units_of(scores[i], unit);
    const double limit = top_p * total > 1.0 ? top_p * total : 1.0; /* one unit: the first token always stays */
    float least = -INFINITY, under = INFINITY;
    float cuts[CUTS] = {-1.0f, -2.0f, -4.0f, -8.0f, -16.0f};
    double before = 0.0;
    for (int64_t inside = count; inside > FEW;) {
        const Above above = mass_above(scores, masses, count, cuts);
        int cut = 0;
        while (cut < CUTS && above.mass[cut] < limit) cut++;
        const float last_under = under, last_least = least;
        if (cut > 0) {
            under = cuts[cut - 1];
            before = above.mass[cut - 1];
        }
        if (cut < CUTS) least = cuts[cut];
        const int64_t until = cut < CUTS ? above.count[cut] : count;
        inside = until - (cut > 0 ? above.count[cut - 1] : 0);
        const float from = under == INFINITY ? 0.0f : under;
        if (least == -INFINITY || (under == last_under && least == last_least)) break;
        for (int next = 0; next < CUTS; next++) cuts[next] = from + (least - from) * (float)(next + 1) / (CUTS + 1);
    }
    int64_t left = gather(scores, count, least, under, scratch);
    for (float *values = scratch; left > 0;) {
        int64_t above, equal;
        const float pivot = split(values, left, &above, &equal);
        double over = 0.0;
        for (int64_t j = 0; j < above; j++) over += units_of(values[j], unit);
        if (before + over >= limit) {
            left = above;
            continue;
        }
        before += over;
        const double each = units_of(pivot, unit);
        if (before + (double)equal * each >= limit) {
            int64_t quota = 1;
            while (before + (double)quota * each < limit) quota++;
            return (Nucleus){pivot, quota};
        }
        before += (double)equal * each;
        values += above + equal;
        left -= above + equal;
    }
    return (Nucleus){-INFINITY, count};
}

int64_t sample_scores(const float *logits, int vocabulary, const SampleSettings *settings, int64_t *token_ids,
                      float *scores, float *scratch) {
    const float largest = largest_of(logits, vocabulary);
    if (!isfinite(largest)) return SAMPLE_NOTHING;
    int i = 0;
    for (; i + LANES <= vocabulary; i += LANES)
        store(scores + i, (load(logits + i) - spread(largest)) / spread(settings->temperature));
    for (; i < vocabulary; i++) scores[i] = (logits[i] - largest) / settings->temperature;
    const int some = settings->top_k > 0 && settings->top_k < vocabulary;
    int64_t count = vocabulary;
    int whole = 1;
    if (some) {
        count = keep(scores, token_ids, whole, count, kth_largest(scores, count, settings->top_k, scratch), INT64_MAX);
        whole = 0;
    }
    if (settings->top_p < 1.0) {
        const Nucleus kept = nucleus(scores, count, settings->top_p, settings->mass_unit, scratch);
        count = keep(scores, token_ids, whole, count, kept.edge, kept.quota);
        whole = 0;
    }
    if (settings->min_score > -INFINITY) {
        count = keep(scores, token_ids, whole, count, settings->min_score, INT64_MAX);
        whole = 0;
    }
    return whole ? SAMPLE_WHOLE : count;
}

typedef uint64_t LongWords __attribute__((vector_size(64)));

/* The halves of the products of sixteen words with one. */
INLINE void multiply(Words a, uint32_t by, Words *high, Words *low) {
    const LongWords lower = (LongWords){0} + 0xFFFFFFFFu, even = (LongWords)a & lower, odd = (LongWords)a >> 32;
#if defined(__AVX512F__)
    const __m512i factor = _mm512_set1_epi64(by);
    const LongWords of_even = (LongWords)_mm512_mul_epu32((__m512i)even, factor);
    const LongWords of_odd = (LongWords)_mm512_mul_epu32((__m512i)odd, factor);
#elif defined(__AVX2__)
    const __m256i factor = _mm256_set1_epi64x(by);
    LongWords of_even, of_odd;
    __m256i half[2];
    memcpy(half, &even, sizeof half);
    for (int i = 0; i < 2; i++) half[i] = _mm256_mul_epu32(half[i], factor);
    memcpy(&of_even, half, sizeof half);
    memcpy(half, &odd, sizeof half);
    for (int i = 0; i < 2; i++) half[i] = _mm256_mul_epu32(half[i], factor);
    memcpy(&of_odd, half, sizeof half);
#else
    const LongWords of_even = even * (uint64_t)by, of_odd = odd * (uint64_t)by;
#endif
    *low = (Words)((of_even & lower) | (of_odd << 32));
    *high = (Words)((of_even >> 32) | (of_odd & ~lower));
}

/* The words of sixteen counters at once; `blocks` are their first words. */
INLINE void sixteen_words(const Noise *noise, Words blocks, Words words[4]) {
    uint32_t k0 = (uint32_t)noise->seed, k1 = (uint32_t)(noise->seed >> 32);
    Words c0 = blocks, c1 = spread_word(noise->position), c2 = spread_word(noise->choice);
    Words c3 = spread_word(noise->stream);
    for (int round = 0; round < 10; round++) {
        Words even_high, even_low, odd_high, odd_low;
        multiply(c0, PHILOX_EVEN, &even_high, &even_low);
        multiply(c2, PHILOX_ODD, &odd_high, &odd_low);
        c0 = odd_high ^ c1 ^ spread_word(k0);
        c2 = even_high ^ c3 ^ spread_word(k1);
        c1 = odd_low;
        c3 = even_low;
        k0 += PHILOX_KEY_STEP0;
        k1 += PHILOX_KEY_STEP1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* The best so far, and what the winner must reach. */
typedef struct {
    float reached;
    float best;
    int64_t token;
} Race;

/* Sixteen tokens with the bits of their uniforms, in rising order; those past the last have a score of -infinity.
 * Noise is under GUMBEL_MAX and -log(u) >= 1 - u: who cannot reach `reached` by these is out before two logarithms. */
INLINE void enter(Race *race, Floats scores, Words bits, const int64_t *token_ids, int64_t first) {
    const Ints short_bits = (Ints)(spread_word(0xFFFFFF) - bits);
    const Floats shortfall = (__builtin_convertvector(short_bits, Floats) + 0.5f) * 0x1p-24f;
    uint32_t able = lane_bits(shortfall <= exponential(scores - race->reached + SLACK));
    for (; able; able &= able - 1) {
        const int i = __builtin_ctz(able);
        const float total = scores[i] + gumbel(bits[i]);
        if (total > race->best) {
            race->best = total;
            race->token = token_ids ? token_ids[i] : first + i;
        }
        race->reached = total > race->reached ? total : race->reached;
    }
}

/* What the noise of a few likely tokens reaches: the winner must reach it too. */
static float reached_by_some(const float *scores, const int64_t *token_ids, int64_t count, const Noise *noise) {
    float some[LANES];
    uint32_t blocks[LANES] = {0}, lanes[LANES], words[4][LANES];
    int found = 0;
    for (int64_t i = 0; i < count && found < LANES; i++) {
        if (i + LANES <= count && !lane_bits(load(scores + i) >= spread(-HEAD_DEPTH))) {
            i += LANES - 1;
            continue;
        }
        if (!(scores[i] >= -HEAD_DEPTH)) continue;
        const int64_t token = token_ids ? token_ids[i] : i;
        blocks[found] = (uint32_t)(token >> 2);
        lanes[found] = (uint32_t)token & 3;
        some[found++] = scores[i];
    }
    Words of_some[4];
    sixteen_words(noise, load_words(blocks), of_some);
    memcpy(words, of_some, sizeof words);
    float reached = -INFINITY;
    for (int i = 0; i < found; i++) {
        const float total = some[i] + gumbel(words[lanes[i]][i] >> 8);
        reached = total > reached ? total : reached;
    }
    return reached;
}

static void race_all(Race *race, const float *scores, int64_t count, const Noise *noise) {
    const Words steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t first = 0; first < count; first += 4 * LANES) {
        Floats part[4];
        Ints able = {0};
        for (int p = 0; p < 4; p++) {
            const int64_t at = first + p * LANES;
            if (at + LANES <= count) {
                part[p] = load(scores + at);
            } else {
                float rest[LANES];
                for (int i = 0; i < LANES; i++) rest[i] = at + i < count ? scores[at + i] : -INFINITY;
                part[p] = load(rest);
            }
            able |= (Ints)(part[p] >= spread(race->reached - GUMBEL_MAX - SLACK));
        }
        if (!lane_bits(able)) continue;
        Words words[4];
        sixteen_words(noise, spread_word((uint32_t)(first / 4)) + steps, words);
        /* Token 4 i + j has lane j of counter i. */
        uint32_t bits[4][LANES], lane[4][LANES];
        memcpy(lane, words, sizeof lane);
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < 4; j++) bits[i / 4][4 * (i % 4) + j] = lane[j][i] >> 8;
        for (int p = 0; p < 4; p++) enter(race, part[p], load_words(bits[p]), NULL, first + p * LANES);
    }
}

/* As many tokens at a time as share sixteen counters. */
static void race_some(Race *race, const float *scores, const int64_t *token_ids, int64_t count, const Noise *noise) {
    for (int64_t first = 0; first < count;) {
        float some[4 * LANES];
        int64_t tokens[4 * LANES];
        uint32_t blocks[LANES] = {0}, counter[4 * LANES], bits[4 * LANES] = {0}, lane[4][LANES];
        int filled = 0, used = 0;
        const float least = race->reached - GUMBEL_MAX - SLACK;
        for (; first < count; first++) {
            if (!(scores[first] >= least)) continue;
            const uint32_t block = (uint32_t)(token_ids[first] >> 2);
            if (used == 0 || blocks[used - 1] != block) {
                if (used == LANES) break;
                blocks[used++] = block;
            }
            counter[filled] = (uint32_t)used - 1;
            tokens[filled] = token_ids[first];
            some[filled++] = scores[first];
        }
        if (filled == 0) return;
        Words words[4];
        sixteen_words(noise, load_words(blocks), words);
        memcpy(lane, words, sizeof lane);
        for (int i = 0; i < filled; i++) bits[i] = lane[tokens[i] & 3][counter[i]] >> 8;
        const int whole = (filled + LANES - 1) / LANES * LANES;
        for (int i = filled; i < whole; i++) some[i] = -INFINITY;
        for (int i = 0; i < whole; i += LANES) enter(race, load(some + i), load_words(bits + i), tokens + i, 0);
    }
}

int64_t sample_race(const float *scores, const int64_t *token_ids, int64_t count, const Noise *noise) {
    if (count == 1) return token_ids ? token_ids[0] : 0;
    Race race = {reached_by_some(scores, token_ids, count, noise), -INFINITY, -1};
    if (token_ids)
        race_some(&race, scores, token_ids, count, noise);
    else
        race_all(&race, scores, count, noise);
    return race.token;
}

int64_t sample_token(const float *logits, int vocabulary, const SampleSettings *settings, const Noise *noise,
                     int64_t *token_ids, float *scores, float *scratch) {
    const int64_t count = sample_scores(logits, vocabulary, settings, token_ids, scores, scratch);
    if (count == SAMPLE_WHOLE) return sample_race(scores, NULL, vocabulary, noise);
    return count < 0 ? count : sample_race(scores, token_ids, count, noise);
}

void sample_uniforms(const Noise *noise, int count, double *uniforms) {
    uint32_t words[4];
    for (int i = 0; i < count; i++) {
        philox_words(noise, (uint32_t)i, words);
        /* 26 bits of each of two words, and a half: exact. */
        uniforms[i] = ((words[0] >> 6) * 0x1p26 + (words[1] >> 6) + 0.5) * 0x1p-52;
    }
}
