/* A few threads that share the items of one piece of work after another. */
#ifndef PACELINE_THREADS_H
#define PACELINE_THREADS_H

typedef struct Threads Threads;

/* Does the items first..last-1; `worker` counts from 0 and names scratch memory. */
typedef void (*Work)(void *argument, int first, int last, int worker);

Threads *threads_create(int count);
void threads_destroy(Threads *threads);
int threads_count(const Threads *threads);

/* The first item of the share of `worker`: where it begins, and that of worker + 1 where it ends. */
int threads_share(const Threads *threads, int items, int worker);

/* Returns once all `items` are done. Each thread does its share in order, `grain` items at a time, then helps the
 * others with theirs: a thread that the system stops for a while holds up the grain that it took and no more. */
void threads_run(Threads *threads, Work work, void *argument, int items, int grain);

#endif
