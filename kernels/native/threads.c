#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* How often an idle thread looks for work before it sleeps: some tens of microseconds, the length of a small product.
 * Between two cycles nobody spins. */
#define LOOKS 20000

/* The items that one thread does first; padded, so that two threads do not share a cache line. */
typedef struct {
    atomic_int next;
    int last;
    char padding[120];
} Share;

struct Threads {
    int count;
    Share *shares;
    pthread_t *workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    atomic_uint round; /* changes when there is work, and at the end */
    atomic_int stopping;
    atomic_int sleeping;
    Work work;
    void *argument;
    int grain;
    atomic_int open;   /* a worker may join the round: one that wakes too late is not waited for */
    atomic_int active; /* workers that are looking whether it is open, or have joined */
};

typedef struct {
    Threads *threads;
    int worker;
} Start;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void take_items(Threads *threads, int worker) {
    for (int turn = 0; turn < threads->count; turn++) {
        Share *share = &threads->shares[(worker + turn) % threads->count];
        for (;;) {
            const int first = atomic_fetch_add(&share->next, threads->grain), last = first + threads->grain;
            if (first >= share->last) break;
            threads->work(threads->argument, first, last < share->last ? last : share->last, worker);
        }
    }
}

static void *serve(void *start_pointer) {
    Start start = *(Start *)start_pointer;
    free(start_pointer);
    Threads *threads = start.threads;
    unsigned seen = 0;
    for (;;) {
        int looks = 0;
        while (atomic_load_explicit(&threads->round, memory_order_acquire) == seen) {
            if (++looks < LOOKS) {
                relax();
                continue;
            }
            pthread_mutex_lock(&threads->mutex);
            atomic_fetch_add(&threads->sleeping, 1);
            while (atomic_load(&threads->round) == seen) pthread_cond_wait(&threads->wake, &threads->mutex);
            atomic_fetch_sub(&threads->sleeping, 1);
            pthread_mutex_unlock(&threads->mutex);
        }
        seen = atomic_load(&threads->round);
        if (atomic_load(&threads->stopping)) return NULL;
        atomic_fetch_add(&threads->active, 1);
        if (atomic_load(&threads->open)) take_items(threads, start.worker);
        atomic_fetch_sub(&threads->active, 1);
    }
}

static void begin_round(Threads *threads) {
    atomic_fetch_add(&threads->round, 1);
    if (atomic_load(&threads->sleeping)) {
        pthread_mutex_lock(&threads->mutex);
        pthread_cond_broadcast(&threads->wake);
        pthread_mutex_unlock(&threads->mutex);
    }
}

Threads *threads_create(int count) {
    Threads *threads = calloc(1, sizeof(Threads));
    if (!threads) return NULL;
    threads->workers = calloc((size_t)count, sizeof(pthread_t));
    threads->shares = calloc((size_t)count, sizeof(Share));
    if (!threads->workers || !threads->shares) {
        free(threads->workers);
        free(threads->shares);
        free(threads);
        return NULL;
    }
    pthread_mutex_init(&threads->mutex, NULL);
    pthread_cond_init(&threads->wake, NULL);
    threads->count = 1;
    for (int worker = 1; worker < count; worker++) {
        Start *start = malloc(sizeof(Start));
        if (!start) break;
        *start = (Start){threads, worker};
        if (pthread_create(&threads->workers[worker], NULL, serve, start)) {
            free(start);
            break;
        }
        threads->count++;
    }
    if (threads->count < count) {
        threads_destroy(threads);
        return NULL;
    }
    return threads;
}

void threads_destroy(Threads *threads) {
    atomic_store(&threads->stopping, 1);
    begin_round(threads);
    for (int worker = 1; worker < threads->count; worker++) pthread_join(threads->workers[worker], NULL);
    pthread_cond_destroy(&threads->wake);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->workers);
    free(threads->shares);
    free(threads);
}

int threads_count(const Threads *threads) { return threads->count; }

int threads_share(const Threads *threads, int items, int worker) {
    return (int)((long)items * worker / threads->count);
}

void threads_run(Threads *threads, Work work, void *argument, int items, int grain) {
    if (threads->count == 1 || items <= grain) {
        if (items > 0) work(argument, 0, items, 0);
        return;
    }
    threads->work = work;
    threads->argument = argument;
    threads->grain = grain;
    for (int worker = 0; worker < threads->count; worker++) {
        threads->shares[worker].last = threads_share(threads, items, worker + 1);
        atomic_store(&threads->shares[worker].next, threads_share(threads, items, worker));
    }
    atomic_store(&threads->open, 1);
    begin_round(threads);
    take_items(threads, 0);
    atomic_store(&threads->open, 0);
    while (atomic_load(&threads->active)) relax();
}
