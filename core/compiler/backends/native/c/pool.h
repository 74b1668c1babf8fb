/* The seam between kernels and threads: what falls into independent chunks is given to `dl_parallel`.
 *
 * A program knows nothing of threads. Where its process has a pool (pool.c) and gave it to the object by `dl_use`, the
 * pool runs the chunks; elsewhere they are run here, one after the other. Each number of a result is computed by one
 * chunk, from the same terms in the same order however the work is cut: results do not depend on the threads.
 *
 * Bounds: chunks are 0..count-1, each given once. dl_span: unit >= 1 and chunks >= 1, so the sums stay below size + unit +
 * chunks < 2^41, and span >= unit: no caller divides by zero.
 */

/* Runs one chunk; `scratch` is working memory that no other chunk uses meanwhile. */
typedef void dl_body(void *context, int64_t chunk, void *scratch);

#ifndef DL_PARALLEL_WORK
#define DL_PARALLEL_WORK 262144 /* multiply-adds, or numbers moved twice: less is not worth waking a thread for */
#endif
#define DL_CHUNKS_MAX 16

#ifdef DL_PORTABLE
DL_INLINE _Bool dl_has_pool(void) { return 0; }
DL_FUNCTION void dl_parallel(int64_t count, dl_body *body, void *context, void *scratch, int64_t bytes) {
  (void)bytes;
  for (int64_t i = 0; i < count; i++) body(context, i, scratch);
}
#else
typedef void dl_runner(int64_t count, dl_body *body, void *context, void *scratch, int64_t bytes);
static dl_runner *dl_run __attribute__((unused));
#if DL_PART != 1
__attribute__((visibility("default"))) void dl_use(dl_runner *run) { __atomic_store_n(&dl_run, run, __ATOMIC_RELEASE); }
#endif
DL_INLINE _Bool dl_has_pool(void) { return __atomic_load_n(&dl_run, __ATOMIC_ACQUIRE) != 0; }

/* Chunks 0 to count - 1, in any order. scratch: the caller's; other threads have `bytes` of their own. */
DL_FUNCTION void dl_parallel(int64_t count, dl_body *body, void *context, void *scratch, int64_t bytes) {
  dl_runner *const run = __atomic_load_n(&dl_run, __ATOMIC_ACQUIRE);
  if (run && count > 1) {
    run(count, body, context, scratch, bytes);
    return;
  }
  for (int64_t i = 0; i < count; i++) body(context, i, scratch);
}
#endif

/* How much of `size` a chunk takes, a multiple of `unit`, so that there are at most `chunks`. */
DL_INLINE int64_t dl_span(int64_t size, int64_t unit, int64_t chunks) {
  const int64_t units = (size + unit - 1) / unit, span = (units + chunks - 1) / chunks * unit;
  return span > 0 ? span : unit;
}
