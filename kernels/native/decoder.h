/* A decoder of the Llama family: layers over paged keys and values, and a head. */
#ifndef PACELINE_DECODER_H
#define PACELINE_DECODER_H

#include "products.h"

typedef struct {
    const float *attention_norm; /* [hidden] */
    const void *qkv;             /* strips of queries, keys, values */
    const float *qkv_bias;       /* or NULL, as every bias */
    const float *query_norm;     /* [head_dim] or NULL */
    const float *key_norm;
    const void *attention_out;
    const float *attention_out_bias;
    const float *feed_forward_norm;
    const void *gate_up; /* strips of gates and of ups in turn */
    const float *gate_up_bias;
    const void *down;
    const float *down_bias;
    void *keys;
    void *values;
    int window;
} Layer;

typedef struct {
    int element;
    int hidden, feed_forward, layer_count, heads, kv_heads, head_dim;
    int vocabulary; /* rows of the head */
    int capacity;   /* positions in the rotary tables */
    float norm_epsilon;
    const Layer *layers;
    const void *head;     /* strips */
    const void *embedding; /* [vocabulary, hidden] elements, or NULL where the head is the embedding */
    const float *norm;    /* [hidden] */
    const float *cosines; /* [capacity, head_dim / 2] */
    const float *sines;
    void *features; /* [blocks, 16, hidden] elements: the input of the head at every position; or NULL */
} Model;

/* Rows of several sequences, those of one sequence together and at rising positions. */
typedef struct {
    int rows, sequences, wanted;
    const int32_t *token_ids;    /* [rows] */
    const int32_t *positions;    /* [rows] */
    const int32_t *first_rows;   /* [sequences + 1] */
    const int32_t *table_starts; /* [sequences] */
    const int32_t *block_tables;
    const int32_t *wanted_rows; /* [wanted]: rows whose logits are wanted */
} Pass;

/* Memory of passes, grown as it is needed and kept. */
typedef struct Workspace Workspace;

/* Bytes up to the end of a cache line, so that the next part begins with one. */
static inline long rounded(long bytes) { return (bytes + 63) / 64 * 64; }

Workspace *workspace_create(void);
void workspace_destroy(Workspace *workspace);
long workspace_bytes(const Workspace *workspace);

/* `logits` is [wanted, strips of the head * 16]. Returns 0, or -1 where memory is short. */
int decoder_forward(const Model *model, Threads *threads, Workspace *workspace, const Pass *pass, float *logits);

/* The parts of it, for drafters. `hidden` [rows, hidden] is the residual stream, changed in place. */
void embed_row(const Model *model, int token, float *hidden);
int run_layers(const Model *model, Threads *threads, Workspace *workspace, const Pass *pass, float *hidden);

/* The matrix products of a pass of `rows` rows alone, on whatever the workspace holds. */
int linear_layers(const Model *model, Threads *threads, Workspace *workspace, int rows, float *logits);

#endif
