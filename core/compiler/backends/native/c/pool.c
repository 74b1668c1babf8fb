/* The threads of a process that compute chunks of programs (pool.h, pool.py). Linux.
 *
 * One job at a time: a caller that finds the pool busy does its own work, so callers neither wait for each other nor
 * take more threads than there are. Chunks are handed out by a counter and the caller takes its share, so that a thread
 * whose core is taken away delays the one chunk that it holds. Threads wait for work by looking for it for some
 * microseconds, then asleep in a futex; so does a caller for the last chunks.
 *
 * The counter is the low half of `state`, the number of the job the high half. A job is written while the counter is at
 * DL_CLOSED; a thread reads the job, then claims a chunk by exchanging the very state that it saw before: had the job
 * changed meanwhile, so had the state. A caller leaves when all chunks are done, so no thread works on a job that is over.
 *
 * A caller that waited for the last chunks much longer than a chunk takes has lost a core to somebody else: it runs the
 * next jobs alone, twice as many each time this happens, and half as many each time it does not.
 */
#include <stddef.h>
#include <stdint.h>

void *malloc(size_t);
void free(void *);
long syscall(long, ...);
int clock_gettime(int, void *);

#define DL_VISIBLE __attribute__((visibility("default")))
#define DL_WORKERS_MAX 63
#define DL_CLOSED 0xffffffffu
#define DL_SPINS 2000
#define DL_ALIGNMENT 64
#define DL_STOLEN_NS 100000
#define DL_ALONE_MAX 256

#if defined(__x86_64__)
#define DL_FUTEX 202
#elif defined(__i386__) || defined(__arm__)
#define DL_FUTEX 240
#else /* the numbers that newer processors share */
#define DL_FUTEX 98
#endif
#define DL_WAIT 128 /* private to the process */
#define DL_WAKE 129

typedef void dl_body(void *context, int64_t chunk, void *scratch);
typedef int dl_entry(void *const *params, void *const *results, char *arena, int64_t list_bytes_max);

#define DL_READ(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define DL_WRITE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)

static struct {
  dl_body *body;
  void *context;
  uint32_t count;
  int64_t bytes;
  int helpers;
} job;
static uint64_t state = DL_CLOSED;
static uint32_t done, waiting, busy;
static uint32_t alone, again; /* jobs that run without the pool, and how many when a core is lost again */

typedef struct {
  uint32_t called, asleep;
  char *memory;
  int64_t size;
} __attribute__((aligned(128))) dl_worker;
static dl_worker workers[DL_WORKERS_MAX];

/* How many threads the program may use that this thread runs. */
static __thread int allowed;

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
  struct {
    long s, ns;
  } t = {0, 0};
  clock_gettime(1, &t); /* the monotonic clock */
  return (int64_t)t.s * 1000000000 + t.ns;
}

static void sleep_while(uint32_t *word, uint32_t value) { syscall(DL_FUTEX, word, DL_WAIT, value, (void *)0); }
static void wake(uint32_t *word) { syscall(DL_FUTEX, word, DL_WAKE, 1); }

/* Working memory of a thread, 64 bytes aligned; 0 when there is none. */
static char *room(dl_worker *me, int64_t bytes) {
  if (!me->memory || me->size < bytes) {
    free(me->memory);
    me->memory = malloc((size_t)bytes + DL_ALIGNMENT);
    me->size = me->memory ? bytes : 0;
    if (!me->memory) return 0;
  }
  return me->memory + (-(uintptr_t)me->memory & (DL_ALIGNMENT - 1));
}

/* Computes one chunk of the job; 0 when there is none for this thread. */
static int help(int number) {
  uint64_t seen = DL_READ(state);
  for (;;) {
    const uint32_t chunk = (uint32_t)seen, count = DL_READ(job.count);
    if (chunk >= count || number >= DL_READ(job.helpers)) return 0;
    dl_body *const body = DL_READ(job.body);
    void *const context = DL_READ(job.context);
    char *const scratch = room(&workers[number], DL_READ(job.bytes));
    if (!scratch) return 0;
    if (!__atomic_compare_exchange_n(&state, &seen, seen + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
    body(context, chunk, scratch);
    if (__atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST) == count && DL_READ(waiting)) wake(&done);
    return 1;
  }
}

/* The life of a thread of the pool. Never returns. */
DL_VISIBLE void dl_pool_work(int number) {
  dl_worker *const me = &workers[number];
  for (;;) {
    const uint32_t called = DL_READ(me->called);
    while (help(number)) {}
    for (int i = 0; i < DL_SPINS && DL_READ(me->called) == called; i++) pause_briefly();
    DL_WRITE(me->asleep, 1);
    while (DL_READ(me->called) == called) sleep_while(&me->called, called);
    DL_WRITE(me->asleep, 0);
  }
}

static void run_here(int64_t count, dl_body *body, void *context, void *scratch) {
  for (int64_t i = 0; i < count; i++) body(context, i, scratch);
}

/* A dl_runner: see dl_parallel in pool.h. */
DL_VISIBLE void dl_pool_run(int64_t count, dl_body *body, void *context, void *scratch, int64_t bytes) {
  const int helpers = allowed - 1;
  if (helpers < 1 || count < 2 || count >= DL_CLOSED || __atomic_exchange_n(&busy, 1, __ATOMIC_SEQ_CST)) {
    run_here(count, body, context, scratch);
    return;
  }
  if (alone) {
    alone--;
    run_here(count, body, context, scratch);
    DL_WRITE(busy, 0);
    return;
  }
  const int64_t begun = now_ns();
  const uint64_t number = ((DL_READ(state) >> 32) + 1) << 32;
  DL_WRITE(state, number | DL_CLOSED);
  DL_WRITE(job.body, body);
  DL_WRITE(job.context, context);
  DL_WRITE(job.count, (uint32_t)count);
  DL_WRITE(job.bytes, bytes);
  DL_WRITE(job.helpers, helpers);
  DL_WRITE(done, 0);
  DL_WRITE(state, number);
  for (int i = 0; i < helpers && i < count - 1; i++) {
    __atomic_add_fetch(&workers[i].called, 1, __ATOMIC_SEQ_CST);
    if (DL_READ(workers[i].asleep)) wake(&workers[i].called);
  }
  int64_t mine = 0;
  for (;;) {
    const uint32_t chunk = (uint32_t)__atomic_fetch_add(&state, 1, __ATOMIC_SEQ_CST);
    if (chunk >= (uint32_t)count) break;
    body(context, chunk, scratch);
    mine++;
    __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
  }
  if (DL_READ(done) != (uint32_t)count) {
    const int64_t free_from = now_ns();
    for (int i = 0; i < DL_SPINS && DL_READ(done) != (uint32_t)count; i++) pause_briefly();
    DL_WRITE(waiting, 1);
    for (uint32_t now; (now = DL_READ(done)) != (uint32_t)count;) sleep_while(&done, now);
    DL_WRITE(waiting, 0);
    const int64_t waited = now_ns() - free_from;
    if (waited > DL_STOLEN_NS && mine && waited > 2 * (free_from - begun) / mine) {
      alone = again = again < DL_ALONE_MAX / 2 ? 2 * again + 1 : DL_ALONE_MAX;
    } else {
      again /= 2;
    }
  } else {
    again /= 2;
  }
  DL_WRITE(busy, 0);
}

/* Runs a program with so many threads, of which the caller is one; the others are there already. */
DL_VISIBLE int dl_pool_call(dl_entry *entry, void *const *params, void *const *results, char *arena,
                            int64_t list_bytes_max, int threads) {
  allowed = threads;
  const int code = entry(params, results, arena, list_bytes_max);
  allowed = 0;
  return code;
}

/* In a process that was forked: its threads are gone, and what they held is free. */
DL_VISIBLE void dl_pool_reset(void) {
  busy = done = waiting = alone = again = 0;
  state = DL_CLOSED;
  for (int i = 0; i < DL_WORKERS_MAX; i++) {
    workers[i].asleep = 0;
    workers[i].memory = 0; /* it may just have been given back */
    workers[i].size = 0;
  }
}
