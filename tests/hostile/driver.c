/* Runs programs, each with memory of exactly the size that it asks for: a byte beyond is reported.
 *
 * Arguments and results end where their blocks end, and begin at an odd number of elements, as NumPy's views may. What
 * they hold is drawn: a third of the numbers are the ends of their types and what is next to zero. */
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#undef malloc /* of plain C */
#undef free

typedef struct {
  char kind; /* f, d, h: floats; l, i, u: integers; b: a bool */
  int64_t size, count;
  int small; /* numbers from 0 to 5: what counts rounds */
} port;
typedef struct {
  int64_t from, to;
} span;
typedef struct {
  int (*entry)(void *const *, void *const *, char *, int64_t);
  const port *takes, *gives;
  const span *spans, *donated; /* donated: a parameter, and the result that takes its memory */
  int takes_count, gives_count, spans_count, donated_count;
  int64_t arena;
} program;

/* TABLES */

static uint64_t drawn = 88172645463325252ull;
static uint64_t draw(void) {
  drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
  return drawn;
}

static void fill_one(const port *p, char *at) {
  static const uint64_t ends[] = {0, 1, ~0ull, 2, 0x7fffffffffffffffull, 0x8000000000000000ull, 0x80000000ull,
                                  0x7fffffffull, 0xffffffffull, 0x100000000ull, 3, 5, 7, 0x8000000000000001ull};
  static const double numbers[] = {0.0, -0.0, 1.0, -1.0, 0.5, 1e30, -1e30, 1e-40, 3e38, -3e38, 2147483648.0,
                                   -2147483649.0, 9.3e18, -9.3e18, 1e300, -1e300, 255.5, -0.75};
  const uint64_t r = draw();
  const _Bool usual = r % 3;
  if (p->small) {
    const int64_t n = (int64_t)(r % 6);
    memcpy(at, &n, (size_t)p->size);
  } else if (p->kind == 'b') {
    *at = (char)(r >> 8 & 1);
  } else if (p->kind == 'f' || p->kind == 'd') {
    const uint64_t which = draw() % (sizeof numbers / sizeof *numbers + 4);
    double x = usual ? (double)(int64_t)draw() / 4.6e18 : which < 18 ? numbers[which] : 0;
    if (!usual && which >= 18) x = which < 20 ? (which == 18 ? __builtin_inf() : -__builtin_inf()) : __builtin_nan("");
    const float y = (float)(x > 3.4e38 && x < 1e308 ? 3.4e38 : x < -3.4e38 && x > -1e308 ? -3.4e38 : x);
    memcpy(at, p->kind == 'f' ? (const void *)&y : (const void *)&x, (size_t)p->size);
  } else {
    const uint64_t x = usual ? draw() % 23 - 3 : r % 5 == 0 ? draw() : ends[draw() % (sizeof ends / sizeof *ends)];
    memcpy(at, &x, (size_t)p->size);
  }
}

/* A port's memory: it ends with its block, and what is before it is poisoned. */
static char *memory_of(const port *p, char **block, _Bool filled) {
  const size_t bytes = (size_t)(p->size * p->count), odd = (size_t)p->size * (draw() % 4);
  *block = malloc(bytes + odd + (bytes + odd == 0));
  ASAN_POISON_MEMORY_REGION(*block, odd);
  char *const at = *block + odd;
  if (!bytes) ASAN_POISON_MEMORY_REGION(at, 1);
  for (int64_t i = 0; i < p->count && filled; i++) fill_one(p, at + i * p->size);
  return at;
}

#if THREADED
/* In place of the pool: chunks in another order, each with a block of its own to work in. */
static void chunk_by_chunk(int64_t count, dl_body *body, void *context, void *scratch, int64_t bytes) {
  for (int64_t i = count - 1; i >= 0; i--) {
    char *const own = i % 2 ? scratch : bytes ? aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64) : 0;
    if (own != scratch && own) ASAN_POISON_MEMORY_REGION(own + bytes, (size_t)((bytes + 63) / 64 * 64 - bytes));
    body(context, i, own);
    if (own != scratch && own) {
      ASAN_UNPOISON_MEMORY_REGION(own, (size_t)(bytes + 63) / 64 * 64);
      free(own);
    }
  }
}
#endif

static void run(const program *p) {
  void *takes[64], *gives[64];
  char *blocks[128];
  int n = 0;
  for (int i = 0; i < p->takes_count; i++) takes[i] = memory_of(&p->takes[i], &blocks[n++], 1);
  for (int i = 0; i < p->gives_count; i++) gives[i] = memory_of(&p->gives[i], &blocks[n++], 0);
  for (int i = 0; i < p->donated_count; i++) gives[p->donated[i].to] = takes[p->donated[i].from];
  const size_t room = (size_t)(p->arena + 63) / 64 * 64 + 64;
  char *const arena = aligned_alloc(64, room);
  ASAN_POISON_MEMORY_REGION(arena, room);
  for (int i = 0; i < p->spans_count; i++)
    ASAN_UNPOISON_MEMORY_REGION(arena + p->spans[i].from, (size_t)(p->spans[i].to - p->spans[i].from));
  p->entry(takes, gives, arena, 1 << 20);
  ASAN_UNPOISON_MEMORY_REGION(arena, room);
  free(arena);
  for (int i = 0; i < n; i++) {
    ASAN_UNPOISON_MEMORY_REGION(blocks[i], 1);
    free(blocks[i]);
  }
}

int main(int argc, char **argv) {
  const int count = (int)(sizeof programs / sizeof *programs);
#if THREADED && !defined(DL_PORTABLE)
  dl_use(chunk_by_chunk);
#endif
  for (int i = argc > 1 ? atoi(argv[1]) : 0; i < count; i++) {
    printf("program %d\n", i);
    fflush(stdout);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    const struct rlimit limit = {(rlim_t)used.ru_utime.tv_sec + (rlim_t)used.ru_stime.tv_sec + HANG_S, RLIM_INFINITY};
    setrlimit(RLIMIT_CPU, &limit);
    drawn = 88172645463325252ull ^ (SEED + (uint64_t)i) * 0x9e3779b97f4a7c15ull;
    for (int j = 0; j < 8; j++) draw();
    run(&programs[i]);
  }
  return 0;
}
