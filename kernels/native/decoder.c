#include "decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

/* Up to so many rows one thread places the heads sooner than two have agreed to. */
#define FEW_PLACED 2
/* Up to so many rows every thread norms all of them for itself; of more each norms some. */
#define OWN_NORMS 32

struct Workspace {
    int rows, threads;
    long bytes;
    char *memory;
    float *hidden; /* [rows, hidden] */
    float *qkv;    /* [rows, (heads + 2 kv_heads) * head_dim] */
    void *normed;  /* [rows, hidden] elements; up to OWN_NORMS rows for each thread */
    void *queries; /* [kv_heads, rows, group, head_dim] elements */
    void *mixed;   /* [rows, heads * head_dim] elements */
    void *gated;   /* [rows, feed_forward] elements */
    char *scratch; /* for attention, of each thread */
    long scratch_bytes;
};

Workspace *workspace_create(void) { return calloc(1, sizeof(Workspace)); }

void workspace_destroy(Workspace *workspace) {
    free(workspace->memory);
    free(workspace);
}

long workspace_bytes(const Workspace *workspace) { return workspace->bytes; }

/* Make room for `rows` rows of `model`: a workspace serves one model. */
static int reserve(Workspace *workspace, const Model *model, const Threads *threads, int rows) {
    if (rows <= workspace->rows && threads_count(threads) <= workspace->threads) return 0;
    if (rows < workspace->rows) rows = workspace->rows;
    const long element_bytes = model->element / 8;
    const long query_width = (long)model->heads * model->head_dim;
    const long qkv_width = query_width + 2L * model->kv_heads * model->head_dim;
    const long own_rows = (long)(rows < OWN_NORMS ? rows : OWN_NORMS) * threads_count(threads);
    const long normed_rows = rows > own_rows ? rows : own_rows;
    const long sizes[6] = {
        rounded(rows * model->hidden * 4L),
        rounded(rows * qkv_width * 4),
        rounded(normed_rows * model->hidden * element_bytes),
        rounded(rows * query_width * element_bytes),
        rounded(rows * query_width * element_bytes),
        rounded(rows * model->feed_forward * element_bytes),
    };
    const long scratch_bytes = rounded(attention_scratch_bytes(model->capacity));
    long bytes = scratch_bytes * threads_count(threads);
    for (int i = 0; i < 6; i++) bytes += sizes[i];
    char *memory = aligned_alloc(64, (size_t)bytes);
    if (!memory) return -1;
    free(workspace->memory);
    workspace->memory = memory;
    workspace->bytes = bytes;
    workspace->rows = rows;
    workspace->threads = threads_count(threads);
    char *parts[6];
    for (int i = 0; i < 6; i++) {
        parts[i] = memory;
        memory += sizes[i];
    }
    workspace->hidden = (float *)parts[0];
    workspace->qkv = (float *)parts[1];
    workspace->normed = parts[2];
    workspace->queries = parts[3];
    workspace->mixed = parts[4];
    workspace->gated = parts[5];
    workspace->scratch = memory;
    workspace->scratch_bytes = scratch_bytes;
    return 0;
}

static void norm_in_place(float *x, const float *weight, float epsilon, int width) {
    const float scale = inverse_root(x, epsilon, width);
    for (int i = 0; i < width; i += LANES) store(x + i, load(x + i) * scale * load(weight + i));
}

/* Turn pairs (x[i], x[i + half]) by the angles of a position. */
static void turn(float *x, const float *cosines, const float *sines, int half) {
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        const Floats first = load(x + i), second = load(x + i + half), c = load(cosines + i), s = load(sines + i);
        store(x + i, first * c - second * s);
        store(x + i + half, second * c + first * s);
    }
    for (; i < half; i++) {
        const float first = x[i], second = x[i + half];
        x[i] = first * cosines[i] - second * sines[i];
        x[i + half] = second * cosines[i] + first * sines[i];
    }
}

typedef struct {
    const Model *model;
    const Layer *layer;
    const Attention *attention;
    Workspace *workspace;
} Place;

typedef struct {
    const Model *model;
    const float *hidden, *weight;
    char *normed;
} Norms;

static void norm_rows(void *argument, int first, int last, int worker) {
    const Norms *norms = argument;
    const Model *model = norms->model;
    (void)worker;
    for (int row = first; row < last; row++)
        norm_row(model->element, norms->hidden + (long)row * model->hidden, norms->weight, model->norm_epsilon,
                 model->hidden, norms->normed + (long)row * model->hidden * model->element / 8);
}

/* The norm that the next product does itself; of many rows it is done here, and the product does none. */
static Norm norm_for(const Model *model, Threads *threads, Workspace *workspace, int rows, const float *hidden,
                     const float *weight) {
    if (rows <= OWN_NORMS) return (Norm){hidden, weight, model->norm_epsilon};
    Norms norms = {model, hidden, weight, workspace->normed};
    threads_run(threads, norm_rows, &norms, rows, 4);
    return (Norm){NULL, NULL, 0.0f};
}

/* After the projection: norms of the heads, rotation, keys and values into the cache, queries in order. Item by item a
 * head of all rows, in the order of their outputs: most of a thread's share is what it projected itself. */
static void place_heads(void *argument, int first, int last, int worker) {
    const Place *place = argument;
    const Model *model = place->model;
    const Attention *attention = place->attention;
    const int head_dim = model->head_dim, half = head_dim / 2, group = model->heads / model->kv_heads;
    const long width = (long)(model->heads + 2 * model->kv_heads) * head_dim;
    const long row_bytes = (long)head_dim * model->element / 8;
    (void)worker;
    for (int head = first; head < last; head++) {
        const int kv_head = (head - model->heads) % model->kv_heads;
        const float *norm = head < model->heads ? place->layer->query_norm : place->layer->key_norm;
        int sequence = 0;
        for (int row = 0; row < attention->rows; row++) {
            while (attention->first_rows[sequence + 1] <= row) sequence++;
            float *x = place->workspace->qkv + row * width + head * head_dim;
            if (head >= model->heads + model->kv_heads) {
                write_value(attention, sequence, row, kv_head, x);
                continue;
            }
            const long angles = (long)attention->positions[row] * half;
            if (norm) norm_in_place(x, norm, model->norm_epsilon, head_dim);
            turn(x, model->cosines + angles, model->sines + angles, half);
            if (head < model->heads) {
                const long to = ((long)(head / group) * attention->rows + row) * group + head % group;
                to_words(model->element, x, (char *)place->workspace->queries + to * row_bytes, head_dim);
            } else {
                write_key(attention, sequence, row, kv_head, x);
            }
        }
    }
}

/* The product after the last one of layer `index`. */
static Upcoming after(const Model *model, int index, int qkv_width) {
    if (index + 1 < model->layer_count)
        return (Upcoming){model->layers[index + 1].qkv, model->hidden, qkv_width / LANES};
    return (Upcoming){model->head, model->hidden, (model->vocabulary + LANES - 1) / LANES};
}

int run_layers(const Model *model, Threads *threads, Workspace *workspace, const Pass *pass, float *hidden) {
    if (reserve(workspace, model, threads, pass->rows)) return -1;
    const int rows = pass->rows, query_width = model->heads * model->head_dim;
    const int qkv_width = query_width + 2 * model->kv_heads * model->head_dim;
    const int placed = model->heads + 2 * model->kv_heads;
    Attention attended = {
        .element = model->element,
        .rows = rows,
        .sequences = pass->sequences,
        .heads = model->heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_dim,
        .scale = 1.0f / sqrtf((float)model->head_dim),
        .positions = pass->positions,
        .first_rows = pass->first_rows,
        .table_starts = pass->table_starts,
        .block_tables = pass->block_tables,
        .queries = workspace->queries,
        .mixed = workspace->mixed,
    };
    for (int index = 0; index < model->layer_count; index++) {
        const Layer *layer = &model->layers[index];
        const Upcoming gate_up = {layer->gate_up, model->hidden, 2 * model->feed_forward / LANES};
        attended.window = layer->window;
        attended.keys = layer->keys;
        attended.values = layer->values;
        const Norm attention_norm = norm_for(model, threads, workspace, rows, hidden, layer->attention_norm);
        product(threads, &(Product){model->element, rows, model->hidden, qkv_width / LANES, layer->qkv, layer->qkv_bias,
                                    workspace->normed, workspace->qkv, qkv_width, END_STORE,
                                    {layer->attention_out, query_width, model->hidden / LANES},
                                    attention_norm});
        begin_blocks(&attended);
        Place place = {model, layer, &attended, workspace};
        threads_run(threads, place_heads, &place, placed, rows <= FEW_PLACED ? placed : 1);
        attention(threads, &attended, workspace->scratch, workspace->scratch_bytes);
        product(threads, &(Product){model->element, rows, query_width, model->hidden / LANES, layer->attention_out,
                                    layer->attention_out_bias, workspace->mixed, hidden, model->hidden, END_ADD,
                                    gate_up});
        const Norm feed_forward_norm = norm_for(model, threads, workspace, rows, hidden, layer->feed_forward_norm);
        product(threads, &(Product){model->element, rows, model->hidden, 2 * model->feed_forward / LANES, layer->gate_up,
                                    layer->gate_up_bias, workspace->normed, workspace->gated, model->feed_forward,
                                    END_GATED, {layer->down, model->feed_forward, model->hidden / LANES},
                                    feed_forward_norm});
        product(threads, &(Product){model->element, rows, model->feed_forward, model->hidden / LANES, layer->down,
                                    layer->down_bias, workspace->gated, hidden, model->hidden, END_ADD,
                                    after(model, index, qkv_width)});
    }
    return 0;
}

void embed_row(const Model *model, int token, float *hidden) {
    const int words = model->hidden * model->element / 32;
    const uint32_t *from = model->embedding ? (const uint32_t *)model->embedding + (long)token * words
                                            : (const uint32_t *)model->head +
                                                  (long)(token / (2 * LANES)) * words * 2 * LANES + token % (2 * LANES);
    const long step = model->embedding ? 1 : 2 * LANES;
    for (int word = 0; word < words; word++) {
        const uint32_t bits = from[word * step];
        if (model->element == BFLOAT16) {
            hidden[2 * word] = float_of((uint16_t)bits);
            hidden[2 * word + 1] = float_of((uint16_t)(bits >> 16));
        } else {
            memcpy(hidden + word, &bits, 4);
        }
    }
}

int decoder_forward(const Model *model, Threads *threads, Workspace *workspace, const Pass *pass, float *logits) {
    if (reserve(workspace, model, threads, pass->rows)) return -1;
    const long normed_bytes = (long)model->hidden * model->element / 8;
    const int strips = (model->vocabulary + LANES - 1) / LANES;
    float *hidden = workspace->hidden;
    char *normed = workspace->normed;
    for (int row = 0; row < pass->rows; row++)
        embed_row(model, pass->token_ids[row], hidden + (long)row * model->hidden);
    if (run_layers(model, threads, workspace, pass, hidden)) return -1;
    if (model->features)
        for (int sequence = 0; sequence < pass->sequences; sequence++)
            for (int row = pass->first_rows[sequence]; row < pass->first_rows[sequence + 1]; row++) {
                const int position = pass->positions[row];
                const int block = pass->block_tables[pass->table_starts[sequence] + position / BLOCK_TOKENS];
                norm_row(model->element, hidden + (long)row * model->hidden, model->norm, model->norm_epsilon,
                         model->hidden,
                         (char *)model->features + ((long)block * BLOCK_TOKENS + position % BLOCK_TOKENS) * normed_bytes);
            }
    for (int place = 0; place < pass->wanted; place++)
        norm_row(model->element, hidden + (long)pass->wanted_rows[place] * model->hidden, model->norm,
                 model->norm_epsilon, model->hidden, normed + place * normed_bytes);
    if (pass->wanted)
        product(threads, &(Product){model->element, pass->wanted, model->hidden, strips, model->head, NULL, normed,
                                    logits, (long)strips * LANES, END_STORE});
    return 0;
}

int linear_layers(const Model *model, Threads *threads, Workspace *workspace, int rows, float *logits) {
    if (reserve(workspace, model, threads, rows)) return -1;
    const int query_width = model->heads * model->head_dim, strips = (model->vocabulary + LANES - 1) / LANES;
    const int qkv_width = query_width + 2 * model->kv_heads * model->head_dim;
    memset(workspace->normed, 0, (size_t)rows * (size_t)model->hidden * (size_t)model->element / 8);
    memset(workspace->mixed, 0, (size_t)rows * (size_t)query_width * (size_t)model->element / 8);
    for (int index = 0; index < model->layer_count; index++) {
        const Layer *layer = &model->layers[index];
        const Upcoming gate_up = {layer->gate_up, model->hidden, 2 * model->feed_forward / LANES};
        product(threads, &(Product){model->element, rows, model->hidden, qkv_width / LANES, layer->qkv, layer->qkv_bias,
                                    workspace->normed, workspace->qkv, qkv_width, END_STORE,
                                    {layer->attention_out, query_width, model->hidden / LANES}});
        product(threads, &(Product){model->element, rows, query_width, model->hidden / LANES, layer->attention_out,
                                    layer->attention_out_bias, workspace->mixed, workspace->hidden, model->hidden,
                                    END_STORE, gate_up});
        product(threads, &(Product){model->element, rows, model->hidden, 2 * model->feed_forward / LANES, layer->gate_up,
                                    layer->gate_up_bias, workspace->normed, workspace->gated, model->feed_forward,
                                    END_GATED, {layer->down, model->feed_forward, model->hidden / LANES}});
        product(threads, &(Product){model->element, rows, model->feed_forward, model->hidden / LANES, layer->down,
                                    layer->down_bias, workspace->gated, workspace->hidden, model->hidden, END_STORE,
                                    after(model, index, qkv_width)});
    }
    product(threads, &(Product){model->element, rows, model->hidden, strips, model->head, NULL, workspace->normed, logits,
                                (long)strips * LANES, END_STORE});
    return 0;
}
