/* Drafting with a small decoder: catch up with the text, then step after step, for all sequences in one call. */
#ifndef PACELINE_DRAFT_H
#define PACELINE_DRAFT_H

#include "decoder.h"
#include "draft_choice.h"

typedef struct {
    const Model *embedder; /* whose embedding the tokens are read from */
    const Model *layers;   /* the drafter's own layers, norm and rotary tables; its head is not read */
    const void *head;      /* strips, [outputs, hidden] */
    int outputs;
    const int32_t *token_ids; /* [outputs]: what each output stands for; NULL: output i is token i */
    /* A feature head only, else NULL. */
    const void *join;            /* strips, [hidden, 2 hidden]: of the normed embedding and the normed feature */
    const float *embedding_norm; /* [hidden] */
    const float *feature_norm;   /* [hidden] */
    const void *features;        /* the target's, [blocks, 16, hidden] elements */
} DraftModel;

typedef struct {
    Pass pass; /* tokens to catch up with: of each sequence up to its last one; `wanted` and its rows are not read */
    const int32_t *lengths;         /* [sequences]: tokens to draft; 0 only catches up */
    const DraftSampling *samplings; /* [sequences] */
    const float *stops;             /* [sequences]: a draft ends before the product of its confidences falls under it */
    int longest;                    /* largest of `lengths` */
    /* Results. */
    int32_t *counts;      /* [sequences] */
    int32_t *tokens;      /* [sequences, longest] */
    float *confidences;   /* [sequences, longest] */
    int32_t *candidates;  /* [sequences, longest], and the two below [sequences, longest, CANDIDATES]: draft_probs; */
    int32_t *token_out;   /* NULL where no sequence has noise of its own */
    float *prob_out;
} Draft;

/* Memory of drafts, grown as it is needed and kept. */
typedef struct DraftWorkspace DraftWorkspace;

DraftWorkspace *draft_workspace_create(void);
void draft_workspace_destroy(DraftWorkspace *workspace);

/* Rows of a model's head, [count, hidden] elements. Returns 0, or -1 where memory is short. */
int head_rows(const Model *model, const int32_t *token_ids, int count, void *rows);

/* Under noise of its own a draft's length may depend on what is known before the first draw only: see draft.c.
 * Returns 0, or -1 where memory is short. */
int draft(const DraftModel *model, Threads *threads, DraftWorkspace *workspace, const Draft *task);

#endif
