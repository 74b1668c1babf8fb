/* Both gradients of a dense layer in one pass over its weights, which are too many for a cache.
 *
 * C = A W', and then W += scale * P Q, for W [n][k] that lies row by row: A is m by k, P n by depth, Q depth by k. Rows
 * of W are read for C and changed while they are still in the second cache. The tiles are those of two products one
 * after the other, or split as evenly, so the sums are the same to the last bit.
 */

/* Rows of W at a time, some tiles of both products; the last time up to a tile more, so that no tile is of one row
 * alone, of which compilers make something else. */
#define DL_STRIPE (2 * DL_MR)
#define DL_STRIPE_BLOCKS (3 * DL_MR / DL_POINTERS + 1)

typedef struct {
  const dl_gemm *back, *step;
  int64_t stripes, span;
} dl_descent;

/* Rows m0 to `end`, a stripe, of C += A B; B in panels, each of which goes over all of them. */
DL_FUNCTION void dl_stripe(const dl_gemm *g, int64_t m0, int64_t end) {
  const float *panel = g->panels;
  dl_block blocks[DL_STRIPE_BLOCKS];
  int count = 0;
  for (; m0 < end; m0 += blocks[count++].rows) dl_rows_from(&blocks[count], g->rows, m0, end - m0);
  for (int64_t n0 = 0; n0 < g->n; n0 += DL_NR) {
    const int64_t columns = g->n - n0 < DL_NR ? g->n - n0 : DL_NR, width = dl_width(columns);
    for (int i = 0; i < count; i++) dl_block_panel(&blocks[i], g->rows, panel, width, n0, columns, g->c, 0);
    panel += g->k * width;
  }
}

DL_FUNCTION void dl_descent_chunk(void *context, int64_t chunk, void *scratch) {
  const dl_descent *d = (const dl_descent *)context;
  const int64_t last = (chunk + 1) * d->span < d->stripes ? (chunk + 1) * d->span : d->stripes;
  for (int64_t s = chunk * d->span; s < last; s++) {
    const int64_t n0 = s * DL_STRIPE, end = s + 1 == d->stripes ? d->back->n : n0 + DL_STRIPE;
    dl_gemm_turned(d->back, 0, d->back->m, n0, end, (float *)scratch);
    dl_stripe(d->step, n0, end);
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
  const dl_rows weights = {w, n, 0, k, 1, k, 0, 1}, left = {p, n, 0, pm, 1, depth, 0, pk};
  const dl_gemm back = {0, m, n, k, &weights, 0, 0, 0, turned, &made, 0, 0, 0};
  const dl_gemm step = {0, n, k, depth, &left, 0, 0, 0, panels, &changed, 0, 0, 0};
  const int64_t stripes = (n + DL_STRIPE - DL_MR) / DL_STRIPE;
  dl_descent d = {&back, &step, stripes > 0 ? stripes : 1, 0};
  d.span = dl_has_pool() && m * n * k >= DL_PARALLEL_WORK ? dl_span(d.stripes, 1, DL_CHUNKS_MAX) : d.stripes;
  dl_pack_all(k, m, a, ak, am, turned);
  dl_pack_all(depth, k, q, qk, qn, panels);
  dl_parallel((d.stripes + d.span - 1) / d.span, dl_descent_chunk, &d, turned, 0);
}
