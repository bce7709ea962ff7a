#include "products.h"

#include <stdlib.h>

#include "lanes.h"

/* A call for each number of rows, so that the sums of a tile stay in registers. */
#if MAX_ROWS == 12
#define FOR_ROWS(rows, call, ...)            \
    switch (rows) {                          \
        case 1: call(1, __VA_ARGS__); break; \
        case 2: call(2, __VA_ARGS__); break; \
        case 3: call(3, __VA_ARGS__); break; \
        case 4: call(4, __VA_ARGS__); break; \
        case 5: call(5, __VA_ARGS__); break; \
        case 6: call(6, __VA_ARGS__); break; \
        case 7: call(7, __VA_ARGS__); break; \
        case 8: call(8, __VA_ARGS__); break; \
        case 9: call(9, __VA_ARGS__); break; \
        case 10: call(10, __VA_ARGS__); break; \
        case 11: call(11, __VA_ARGS__); break; \
        case 12: call(12, __VA_ARGS__); break; \
    }
#else
#define FOR_ROWS(rows, call, ...)            \
    switch (rows) {                          \
        case 1: call(1, __VA_ARGS__); break; \
        case 2: call(2, __VA_ARGS__); break; \
        case 3: call(3, __VA_ARGS__); break; \
    }
#endif

/* Where the strips of a tile come from. */
enum { CACHED, WEIGHTS, HINTS };

/* Bytes of weights that are asked for before their turn, at least; for few rows words, but at the end of a share.
 * Measured on AMD Zen 4, one and two threads. */
#define AHEAD_BYTES (96 << 10)
#define FEW_ROWS 4
#define AHEAD_OF_FEW 2048

#define ELEMENT_BITS 16
#include "element.inc"
#undef ELEMENT_BITS
#define ELEMENT_BITS 32
#include "element.inc"
#undef ELEMENT_BITS

typedef struct {
    const Product *product;
    const Threads *threads;
    int pairs;
} ProductWork;

/* What `worker` reads some way after a pair of strips: a later pair of its share, or of its share of the next product.
 * Its bytes are asked for while the pair is computed. */
static const uint32_t *upcoming(const ProductWork *work, int pair, int worker) {
    const Product *product = work->product;
    const long bytes = 2L * LANES * product->inputs * product->element / 8;
    const int later = pair + (int)((AHEAD_BYTES + bytes - 1) / bytes);
    const int end = threads_share(work->threads, work->pairs, worker + 1);
    const char *weights = product->weights;
    if (later < end) return (const uint32_t *)(weights + (product->rows <= FEW_ROWS ? pair : later) * bytes);
    if (!product->next.weights) return (const uint32_t *)(weights + pair * bytes);
    const Upcoming *next = &product->next;
    const long next_bytes = 2L * LANES * next->inputs * product->element / 8;
    const int start = threads_share(work->threads, (next->strips + 1) / 2, worker);
    return (const uint32_t *)((const char *)next->weights + start * next_bytes + (later - end) * bytes);
}

static void product_work(void *argument, int first, int last, int worker) {
    const ProductWork *work = argument;
    for (int pair = first; pair < last; pair++) {
        const uint32_t *hint = upcoming(work, pair, worker);
        if (work->product->element == BFLOAT16)
            product_pair_bfloat16(work->product, 2 * pair, hint);
        else
            product_pair_float32(work->product, 2 * pair, hint);
    }
}

void product(Threads *threads, const Product *product) {
    ProductWork work = {product, threads, (product->strips + 1) / 2};
    threads_run(threads, product_work, &work, work.pairs, 1);
}

typedef struct {
    const Attention *attention;
    char *scratch;
    long scratch_bytes;
    int *first_tiles; /* [sequences + 1], tiles of one KV head */
} AttentionWork;

static int tiles_of(int queries) { return (queries + MAX_ROWS - 1) / MAX_ROWS; }

static void attention_work(void *argument, int first, int last, int worker) {
    const AttentionWork *work = argument;
    const Attention *attention = work->attention;
    const int group = attention->heads / attention->kv_heads;
    float *scores = (float *)(work->scratch + worker * work->scratch_bytes);
    uint32_t *shares = (uint32_t *)(work->scratch + worker * work->scratch_bytes + work->scratch_bytes / 2);
    int sequence = 0;
    for (int item = first; item < last; item++) {
        const int kv_head = item % attention->kv_heads, tile = item / attention->kv_heads;
        while (work->first_tiles[sequence + 1] <= tile) sequence++;
        const int queries = (attention->first_rows[sequence + 1] - attention->first_rows[sequence]) * group;
        const int tiles = tiles_of(queries), index = tile - work->first_tiles[sequence];
        const int start = queries * index / tiles, rows = queries * (index + 1) / tiles - start;
        if (attention->element == BFLOAT16)
            attention_queries_bfloat16(attention, sequence, kv_head, start, rows, scores, shares);
        else
            attention_queries_float32(attention, sequence, kv_head, start, rows, scores, shares);
    }
}

long attention_scratch_bytes(int context) {
    const long width = (context + BLOCK_TOKENS - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
    return 2 * MAX_ROWS * width * (long)sizeof(float);
}

void attention(Threads *threads, const Attention *attention, void *scratch, long scratch_bytes) {
    int first_tiles[attention->sequences + 1];
    first_tiles[0] = 0;
    for (int sequence = 0; sequence < attention->sequences; sequence++) {
        const int rows = attention->first_rows[sequence + 1] - attention->first_rows[sequence];
        first_tiles[sequence + 1] = first_tiles[sequence] + tiles_of(rows * (attention->heads / attention->kv_heads));
    }
    AttentionWork work = {attention, scratch, scratch_bytes, first_tiles};
    threads_run(threads, attention_work, &work, first_tiles[attention->sequences] * attention->kv_heads, 1);
}

void begin_blocks(const Attention *attention) {
    const long block_bytes = (long)attention->kv_heads * BLOCK_TOKENS * attention->head_dim * attention->element / 8;
    for (int sequence = 0; sequence < attention->sequences; sequence++)
        for (int row = attention->first_rows[sequence]; row < attention->first_rows[sequence + 1]; row++) {
            const int position = attention->positions[row];
            if (position % BLOCK_TOKENS) continue;
            const int32_t *blocks = attention->block_tables + attention->table_starts[sequence];
            memset((char *)attention->values + blocks[position / BLOCK_TOKENS] * block_bytes, 0, (size_t)block_bytes);
        }
}

void write_kv(const Attention *attention, int sequence, int row, const float *key, const float *value) {
    const int position = attention->positions[row], head_dim = attention->head_dim;
    const int block = attention->block_tables[attention->table_starts[sequence] + position / BLOCK_TOKENS];
    const long head_words = (long)BLOCK_TOKENS * head_dim * attention->element / 32;
    for (int kv_head = 0; kv_head < attention->kv_heads; kv_head++) {
        const long place = ((long)block * attention->kv_heads + kv_head) * head_words;
        uint32_t *keys = (uint32_t *)attention->keys + place, *values = (uint32_t *)attention->values + place;
        if (attention->element == BFLOAT16)
            write_kv_bfloat16(head_dim, key + kv_head * head_dim, value + kv_head * head_dim, keys, values,
                              position % BLOCK_TOKENS);
        else
            write_kv_float32(head_dim, key + kv_head * head_dim, value + kv_head * head_dim, keys, values,
                             position % BLOCK_TOKENS);
    }
}

void to_words(int element, const float *from, void *to, int count) {
    if (element == BFLOAT16)
        to_words_bfloat16(from, to, count);
    else
        to_words_float32(from, to, count);
}

void pack_strips(int element, const void *weights, int outputs, int inputs, void *strips) {
    const int words = inputs * element / 32, rounded = (outputs + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    const uint32_t *from = weights;
    uint32_t *to = strips;
    for (int output = 0; output < rounded; output++) {
        uint32_t *lane = to + (long)(output / (2 * LANES)) * words * 2 * LANES + output % (2 * LANES);
        for (int word = 0; word < words; word++)
            lane[(long)word * 2 * LANES] = output < outputs ? from[(long)output * words + word] : 0;
    }
}
