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

/* Bytes of weights that are asked for before their turn, at least; for few rows words, but at the end of a share, and for
 * many rows words once more, out of the second cache. Measured on AMD Zen 4, one and two threads. */
#define AHEAD_BYTES (96 << 10)
#define AHEAD_OF_MANY 1024
#define FEW_ROWS 4
#define CACHE_LINE 64
#define AHEAD_OF_FEW 2048

#define ELEMENT_BITS 16
#include "element.inc"
#undef ELEMENT_BITS
#define ELEMENT_BITS 32
#include "element.inc"
#undef ELEMENT_BITS

float inverse_root(const float *x, float epsilon, int width) {
    Floats squares = spread(0.0f);
    for (int i = 0; i < width; i += LANES) {
        Floats value = load(x + i);
        squares += value * value;
    }
    return 1.0f / sqrtf(lanes_sum(squares) / (float)width + epsilon);
}

void norm_row(int element, const float *x, const float *weight, float epsilon, int width, void *out) {
    const float scale = inverse_root(x, epsilon, width);
    for (int i = 0; i < width; i += LANES) {
        Floats value = load(x + i) * scale * load(weight + i);
        if (element == BFLOAT16)
            store_bfloat16((uint16_t *)out + i, value);
        else
            store((float *)out + i, value);
    }
}

typedef struct {
    const Product *product;
    const Threads *threads;
    int pairs;
    char *normed; /* [threads], a cache line each: whether the thread has normed the rows */
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
    Product product = *work->product;
    if (product.norm.rows) {
        const long row_bytes = (long)product.inputs * product.element / 8;
        product.x = (char *)product.x + worker * product.rows * row_bytes;
        if (!work->normed[worker * CACHE_LINE])
            for (int row = 0; row < product.rows; row++)
                norm_row(product.element, product.norm.rows + (long)row * product.inputs, product.norm.weight,
                         product.norm.epsilon, product.inputs, (char *)product.x + row * row_bytes);
        work->normed[worker * CACHE_LINE] = 1;
    }
    for (int pair = first; pair < last; pair++) {
        const uint32_t *hint = upcoming(work, pair, worker);
        if (product.element == BFLOAT16)
            product_pair_bfloat16(&product, 2 * pair, hint);
        else
            product_pair_float32(&product, 2 * pair, hint);
    }
}

void product(Threads *threads, const Product *product) {
    char normed[threads_count(threads) * CACHE_LINE];
    for (int worker = 0; worker < threads_count(threads); worker++) normed[worker * CACHE_LINE] = 0;
    ProductWork work = {product, threads, (product->strips + 1) / 2, normed};
    threads_run(threads, product_work, &work, work.pairs, 1);
}

typedef struct {
    const Attention *attention;
    char *scratch;
    long scratch_bytes;
    int *first_items; /* [sequences + 1] */
} AttentionWork;

/* Tiles of the queries of one KV head; where it takes several, as many for each thread, unless a tile has one query. */
static int tiles_of(int queries, int threads) {
    const int tiles = (queries + MAX_ROWS - 1) / MAX_ROWS, even = (tiles + threads - 1) / threads * threads;
    return tiles == 1 ? 1 : even < queries ? even : queries;
}

static void attention_work(void *argument, int first, int last, int worker) {
    const AttentionWork *work = argument;
    const Attention *attention = work->attention;
    const int group = attention->heads / attention->kv_heads;
    float *scores = (float *)(work->scratch + worker * work->scratch_bytes);
    uint32_t *shares = (uint32_t *)(work->scratch + worker * work->scratch_bytes + work->scratch_bytes / 2);
    int sequence = 0;
    for (int item = first; item < last; item++) {
        while (work->first_items[sequence + 1] <= item) sequence++;
        const int queries = (attention->first_rows[sequence + 1] - attention->first_rows[sequence]) * group;
        /* Tiles of a KV head one after another: its keys and values are in the cache after the first. */
        const int tiles = (work->first_items[sequence + 1] - work->first_items[sequence]) / attention->kv_heads;
        const int place = item - work->first_items[sequence], kv_head = place / tiles, index = place % tiles;
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
    int first_items[attention->sequences + 1];
    first_items[0] = 0;
    for (int sequence = 0; sequence < attention->sequences; sequence++) {
        const int rows = attention->first_rows[sequence + 1] - attention->first_rows[sequence];
        const int tiles = tiles_of(rows * (attention->heads / attention->kv_heads), threads_count(threads));
        first_items[sequence + 1] = first_items[sequence] + tiles * attention->kv_heads;
    }
    AttentionWork work = {attention, scratch, scratch_bytes, first_items};
    threads_run(threads, attention_work, &work, first_items[attention->sequences], 1);
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

/* Where in keys or values, in words, the block of a row begins that belongs to a KV head. */
static long head_place(const Attention *attention, int sequence, int row, int kv_head) {
    const int32_t *blocks = attention->block_tables + attention->table_starts[sequence];
    const long head_words = (long)BLOCK_TOKENS * attention->head_dim * attention->element / 32;
    return ((long)blocks[attention->positions[row] / BLOCK_TOKENS] * attention->kv_heads + kv_head) * head_words;
}

void write_key(const Attention *attention, int sequence, int row, int kv_head, const float *key) {
    uint32_t *keys = (uint32_t *)attention->keys + head_place(attention, sequence, row, kv_head);
    const int token = attention->positions[row] % BLOCK_TOKENS;
    if (attention->element == BFLOAT16)
        write_key_bfloat16(attention->head_dim, key, keys, token);
    else
        write_key_float32(attention->head_dim, key, keys, token);
}

void write_value(const Attention *attention, int sequence, int row, int kv_head, const float *value) {
    uint32_t *values = (uint32_t *)attention->values + head_place(attention, sequence, row, kv_head);
    const int token = attention->positions[row] % BLOCK_TOKENS;
    if (attention->element == BFLOAT16)
        write_value_bfloat16(attention->head_dim, value, values, token);
    else
        write_value_float32(attention->head_dim, value, values, token);
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
