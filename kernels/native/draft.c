#include "draft.h"

#include <stdlib.h>
#include <string.h>

#include "lanes.h"

struct DraftWorkspace {
    Workspace *layers;
    long bytes;
    char *memory;
    float *hidden;  /* [rows, hidden] */
    float *parts;   /* [rows, hidden] floats: embeddings and features before their norms */
    char *joined;   /* [rows, 2 hidden] elements */
    char *ends;     /* [sequences, hidden] elements: the normed output that the next step reads */
    float *logits;  /* [sequences, outputs] */
    int32_t *order; /* [6, sequences + 1]: the running sequences of a step */
};

DraftWorkspace *draft_workspace_create(void) {
    DraftWorkspace *workspace = calloc(1, sizeof(DraftWorkspace));
    if (workspace && !(workspace->layers = workspace_create())) {
        free(workspace);
        return NULL;
    }
    return workspace;
}

void draft_workspace_destroy(DraftWorkspace *workspace) {
    workspace_destroy(workspace->layers);
    free(workspace->memory);
    free(workspace);
}

static int padded_outputs(const DraftModel *model) { return (model->outputs + LANES - 1) / LANES * LANES; }

static int reserve(DraftWorkspace *workspace, const DraftModel *model, int rows, int sequences) {
    const long hidden = model->layers->hidden, element_bytes = model->layers->element / 8;
    if (sequences > rows) rows = sequences;
    const long sizes[6] = {
        rounded(rows * hidden * 4),
        rounded(rows * hidden * 4),
        rounded(rows * 2 * hidden * element_bytes),
        rounded(sequences * hidden * element_bytes),
        rounded(sequences * (long)padded_outputs(model) * 4),
        rounded(6 * (sequences + 1) * 4L),
    };
    long bytes = 0;
    for (int i = 0; i < 6; i++) bytes += sizes[i];
    if (bytes > workspace->bytes) {
        char *memory = aligned_alloc(64, (size_t)bytes);
        if (!memory) return -1;
        free(workspace->memory);
        workspace->memory = memory;
        workspace->bytes = bytes;
    }
    char *part = workspace->memory, *parts[6];
    for (int i = 0; i < 6; i++) {
        parts[i] = part;
        part += sizes[i];
    }
    workspace->hidden = (float *)parts[0];
    workspace->parts = (float *)parts[1];
    workspace->joined = parts[2];
    workspace->ends = parts[3];
    workspace->logits = (float *)parts[4];
    workspace->order = (int32_t *)parts[5];
    return 0;
}

static void widen(int element, const void *from, float *to, int count) {
    if (element == FLOAT32) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    for (int i = 0; i < count; i++) to[i] = float_of(((const uint16_t *)from)[i]);
}

int head_rows(const Model *model, const int32_t *token_ids, int count, void *rows) {
    Model tied = *model; /* without an embedding of its own, what is read is the head */
    tied.embedding = NULL;
    float *row = malloc((size_t)model->hidden * sizeof(float));
    if (!row) return -1;
    for (int i = 0; i < count; i++) {
        embed_row(&tied, token_ids[i], row);
        to_words(model->element, row, (char *)rows + (long)i * model->hidden * model->element / 8, model->hidden);
    }
    free(row);
    return 0;
}

typedef struct {
    const DraftModel *model;
    DraftWorkspace *workspace;
    const Pass *pass;
    const char *ends; /* in a step, the features that stand for the target's; NULL while catching up */
} Entry;

static void enter_rows(void *argument, int first, int last, int worker) {
    const Entry *entry = argument;
    const DraftModel *model = entry->model;
    const Model *layers = model->layers;
    const int hidden = layers->hidden;
    const long feature_bytes = (long)hidden * layers->element / 8;
    int sequence = 0;
    (void)worker;
    for (int row = first; row < last; row++) {
        if (!model->join) {
            embed_row(model->embedder, entry->pass->token_ids[row], entry->workspace->hidden + (long)row * hidden);
            continue;
        }
        while (entry->pass->first_rows[sequence + 1] <= row) sequence++;
        float *part = entry->workspace->parts + (long)row * hidden;
        char *joined = entry->workspace->joined + row * 2 * feature_bytes;
        embed_row(model->embedder, entry->pass->token_ids[row], part);
        norm_row(layers->element, part, model->embedding_norm, layers->norm_epsilon, hidden, joined);
        const int before = entry->pass->positions[row] - 1; /* its feature is the target's view of this token */
        if (entry->ends) {
            widen(layers->element, entry->ends + sequence * feature_bytes, part, hidden);
        } else if (before >= 0) {
            const long block =
                entry->pass->block_tables[entry->pass->table_starts[sequence] + before / BLOCK_TOKENS];
            widen(layers->element,
                  (const char *)model->features + (block * BLOCK_TOKENS + before % BLOCK_TOKENS) * feature_bytes, part,
                  hidden);
        } else {
            memset(part, 0, (size_t)hidden * sizeof(float));
        }
        norm_row(layers->element, part, model->feature_norm, layers->norm_epsilon, hidden, joined + feature_bytes);
    }
}

static int run(const DraftModel *model, Threads *threads, DraftWorkspace *workspace, const Pass *pass,
               const char *ends) {
    const int hidden = model->layers->hidden;
    Entry entry = {model, workspace, pass, ends};
    threads_run(threads, enter_rows, &entry, pass->rows, 8);
    if (model->join)
        product(threads, &(Product){model->layers->element, pass->rows, 2 * hidden, hidden / LANES, model->join, NULL,
                                    workspace->joined, workspace->hidden, hidden, END_STORE});
    return run_layers(model->layers, threads, workspace->layers, pass, workspace->hidden);
}

typedef struct {
    const DraftModel *model;
    const Draft *task;
    DraftWorkspace *workspace;
    const int32_t *running; /* sequence of each row of logits */
    int step;
} Choosing;

static void choose_rows(void *argument, int first, int last, int worker) {
    const Choosing *choosing = argument;
    const Draft *task = choosing->task;
    const int outputs = choosing->model->outputs;
    (void)worker;
    for (int row = first; row < last; row++) {
        const int sequence = choosing->running[row];
        const long place = (long)sequence * task->longest + choosing->step;
        const int own = task->samplings[sequence].own_noise;
        const DraftChoice choice = choose_draft(
            &task->samplings[sequence], choosing->step,
            choosing->workspace->logits + (long)row * padded_outputs(choosing->model), outputs,
            choosing->model->token_ids, own ? task->token_out + place * CANDIDATES : NULL,
            own ? task->prob_out + place * CANDIDATES : NULL);
        task->tokens[place] = choice.token;
        task->confidences[place] = choice.confidence;
        if (task->candidates) task->candidates[place] = choice.candidates;
    }
}

/* Whether sequence goes on after `step`, whose token is there; sets its count.
 *
 * Coupled and greedy drafts may be dropped for any reason: a token that makes the product of confidences too small is.
 * A token drawn with noise of its own may not be dropped after a look at it or at what came of it, so the length of
 * such a draft is set by the confidence at its first position, which was known before any draw: as long as it would be
 * if every position were as sure. */
static int goes_on(const Draft *task, int sequence, int step, float *product_of) {
    const float *confidences = task->confidences + (long)sequence * task->longest;
    if (task->samplings[sequence].own_noise) {
        if (!(confidences[step] > 0.0f)) return 0; /* logits that are no numbers: nothing was drawn */
        task->counts[sequence] = step + 1;
        product_of[0] *= confidences[0];
        return step + 1 < task->lengths[sequence] && product_of[0] * confidences[0] >= task->stops[sequence];
    }
    product_of[0] *= confidences[step];
    if (!(product_of[0] >= task->stops[sequence])) return 0;
    task->counts[sequence] = step + 1;
    return step + 1 < task->lengths[sequence];
}

int draft(const DraftModel *model, Threads *threads, DraftWorkspace *workspace, const Draft *task) {
    const Pass *text = &task->pass;
    const int sequences = text->sequences, hidden = model->layers->hidden;
    const long end_bytes = (long)hidden * model->layers->element / 8;
    float products[sequences];
    if (reserve(workspace, model, text->rows, sequences)) return -1;
    if (run(model, threads, workspace, text, NULL)) return -1;
    int32_t *running = workspace->order, *rows = running + sequences, *tokens = rows + sequences;
    int32_t *positions = tokens + sequences, *table_starts = positions + sequences;
    int32_t *first_rows = table_starts + sequences;
    int active = 0;
    for (int sequence = 0; sequence < sequences; sequence++) {
        task->counts[sequence] = 0;
        products[sequence] = 1.0f;
        if (task->lengths[sequence] < 1) continue;
        running[active] = sequence;
        rows[active++] = text->first_rows[sequence + 1] - 1;
    }
    for (int step = 0; active; step++) {
        for (int row = 0; row < active; row++)
            norm_row(model->layers->element, workspace->hidden + (long)rows[row] * hidden, model->layers->norm,
                     model->layers->norm_epsilon, hidden, workspace->ends + row * end_bytes);
        product(threads, &(Product){model->layers->element, active, hidden, padded_outputs(model) / LANES, model->head,
                                    NULL, workspace->ends, workspace->logits, padded_outputs(model), END_STORE});
        Choosing choosing = {model, task, workspace, running, step};
        threads_run(threads, choose_rows, &choosing, active, 1);
        int left = 0;
        for (int row = 0; row < active; row++) {
            const int sequence = running[row];
            if (!goes_on(task, sequence, step, &products[sequence])) continue;
            memmove(workspace->ends + left * end_bytes, workspace->ends + row * end_bytes, (size_t)end_bytes);
            running[left] = sequence;
            rows[left] = first_rows[left] = left;
            tokens[left] = task->tokens[(long)sequence * task->longest + step];
            positions[left] = text->positions[text->first_rows[sequence + 1] - 1] + step + 1;
            table_starts[left++] = text->table_starts[sequence];
        }
        active = left;
        first_rows[left] = left;
        if (!active) break;
        const Pass next = {.rows = active,
                           .sequences = active,
                           .token_ids = tokens,
                           .positions = positions,
                           .first_rows = first_rows,
                           .table_starts = table_starts,
                           .block_tables = text->block_tables};
        if (run(model, threads, workspace, &next, workspace->ends)) return -1;
    }
    return 0;
}
