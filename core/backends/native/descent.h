/* Both gradients of a dense layer in one pass over its weights, which are too many for a cache.
 *
 * C = A W', and then W += scale * P Q, for W [n][k] that lies row by row: A is m by k, P n by depth, Q depth by k. Rows
 * of W are read for C and changed while they are still in the second cache. The tiles are those of two products one
 * after the other, or split as evenly, so the sums are the same to the last bit.
 */

/* Rows of W at a time, some tiles of both products; the last time up to a tile more, so that no tile is of one row
 * alone, of which compilers make something else. */
#define DL_STRIPE (2 * DL_MR)

typedef struct {
  const dl_gemm *back, *step;
  int64_t stripes, span;
} dl_descent;

DL_FUNCTION void dl_descent_chunk(void *context, int64_t chunk, void *scratch) {
  const dl_descent *d = (const dl_descent *)context;
  const int64_t last = (chunk + 1) * d->span < d->stripes ? (chunk + 1) * d->span : d->stripes;
  for (int64_t s = chunk * d->span; s < last; s++) {
    const int64_t n0 = s * DL_STRIPE, end = s + 1 == d->stripes ? d->back->n : n0 + DL_STRIPE;
    dl_gemm_turned(d->back, 0, d->back->m, n0, end, (float *)scratch);
    dl_gemm_rows(d->step, 0, d->step->k, n0, end, d->step->panels, DL_NR, d->step->k * DL_NR, 1, 0, d->step->n);
  }
}

/* The scratches are as of the two products by themselves (dl_gemm_into). */
DL_FUNCTION void dl_gemm_both_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, float *w,
                                  float *c, int64_t depth, const float *p, int64_t pm, int64_t pk, const float *q,
                                  int64_t qk, int64_t qn, float scale, float *turned, float *panels) {
  const dl_target made = {c, n, 0, 0, 0, 1.0f}, changed = {w, k, 0, 0, 1, scale};
  if (DL_MR > DL_NR || n < DL_MR || m > DL_TURNED || k * m > DL_OUTER || depth > DL_SHORT ||
      depth * k > DL_OUTER) {
    dl_gemm_into(m, n, k, a, am, ak, w, 1, k, &made, turned);
    dl_gemm_into(n, k, depth, p, pm, pk, q, qk, qn, &changed, panels);
    return;
  }
  const dl_gemm back = {0, m, n, k, 0, 0, 0, w, 1, k, turned, &made, 0, 0, 0};
  const dl_gemm step = {0, n, k, depth, p, pm, pk, 0, 0, 0, panels, &changed, 0, 0, 0};
  const int64_t stripes = (n + DL_STRIPE - DL_MR) / DL_STRIPE;
  dl_descent d = {&back, &step, stripes > 0 ? stripes : 1, 0};
  d.span = dl_has_pool() && m * n * k >= DL_PARALLEL_WORK ? dl_span(d.stripes, 1, DL_CHUNKS_MAX) : d.stripes;
  dl_pack_all(k, m, a, ak, am, turned);
  dl_pack_scaled(&changed, depth, k, q, qk, qn, panels);
  dl_parallel((d.stripes + d.span - 1) / d.span, dl_descent_chunk, &d, turned, 0);
}
