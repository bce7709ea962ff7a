/* Matrix products with packed weights, and attention over paged keys and values. */
#ifndef PACELINE_PRODUCTS_H
#define PACELINE_PRODUCTS_H

#include <stdint.h>

#include "threads.h"

#define BLOCK_TOKENS 16
/* Rows of a tile: their sums for two strips, and the strips themselves, fill the vector registers. */
#ifdef __AVX512F__
#define MAX_ROWS 12
#else
#define MAX_ROWS 3
#endif

enum { BFLOAT16 = 16, FLOAT32 = 32 };

/* What becomes of the sums of a product: stored; added to what is there; or, where strips of gates and ups alternate,
 * silu(gate) * up stored as the input of the next product. */
enum { END_STORE, END_ADD, END_GATED };

/* Packed weights of a product to come. */
typedef struct {
    const void *weights;
    int inputs, strips;
} Upcoming;

/* Rows that a product norms first. Each thread norms all of them for itself: it takes longer to fetch what another core
 * has just written. */
typedef struct {
    const float *rows;   /* [rows, inputs] */
    const float *weight; /* [inputs] */
    float epsilon;
} Norm;

typedef struct {
    int element;
    int rows;
    int inputs;
    int strips; /* outputs / 16 */
    const void *weights;
    const float *bias; /* [strips * 16] or NULL */
    void *x;           /* [rows, inputs] in words; where rows are normed first, room for as many for each thread */
    void *out;         /* [rows, stride] float32, or elements for END_GATED */
    long stride;
    int end;
    Upcoming next; /* asked for while the last strips are computed; none where its weights are NULL */
    Norm norm;     /* none where its rows are NULL: x holds the inputs already */
} Product;

typedef struct {
    int element;
    int rows, sequences;
    int heads, kv_heads, head_dim;
    int window; /* 0: none; else a row sees this many positions, its own included */
    float scale;
    const int32_t *positions;    /* [rows], rising by one within a sequence */
    const int32_t *first_rows;   /* [sequences + 1] */
    const int32_t *table_starts; /* [sequences]: where a sequence's blocks begin in block_tables */
    const int32_t *block_tables;
    void *keys, *values;  /* of one layer: [blocks, kv_heads, ...] as element.inc lays them out */
    const void *queries;  /* [kv_heads, rows, group, head_dim] in words */
    void *mixed;          /* [rows, heads, head_dim] in words */
} Attention;

/* RMSNorm of one row, rounded to elements: x / sqrt(mean x^2 + epsilon) * weight. */
void norm_row(int element, const float *x, const float *weight, float epsilon, int width, void *out);
float inverse_root(const float *x, float epsilon, int width);

void product(Threads *threads, const Product *product);

/* Writes nothing but `mixed`. `scratch` holds attention_scratch_bytes(longest context) for each thread. */
void attention(Threads *threads, const Attention *attention, void *scratch, long scratch_bytes);
long attention_scratch_bytes(int context);

/* Zero the values of the blocks that begin with a row of the pass. What a block held before may be no number, which no
 * weight, not even zero, keeps out of a sum. */
void begin_blocks(const Attention *attention);

/* Put the key, or the value, [head_dim], of a row and KV head at the row's position into the cache. */
void write_key(const Attention *attention, int sequence, int row, int kv_head, const float *key);
void write_value(const Attention *attention, int sequence, int row, int kv_head, const float *value);

/* Round `count` floats, a multiple of 16, to elements. */
void to_words(int element, const float *from, void *to, int count);

/* weights [outputs, inputs] of the element type, row by row, into pairs of strips; outputs beyond the
 * last row, up to a multiple of 32, are zero. */
void pack_strips(int element, const void *weights, int outputs, int inputs, void *strips);

#endif
