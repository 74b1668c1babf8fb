/* Both gradients of a dense layer in one pass over its weights, and steps of descent by few rows of a batch.
 *
 * C = A W', and then W += scale * P Q, for W [n][k] that lies row by row: A is m by k, P n by depth, Q depth by k.
 *
 * Where A is Q and m is small, a few rows of W are read once for both, a vector of columns at a time: for each row of
 * the batch a vector of A meets them, lanes along the columns, so sums of C stay in registers to the end of W's rows,
 * and what is added to W is there at once. Stores are then far between multiply-adds, which hides them: a tile whose
 * 24 vectors are all stored in the end waits for that. A step of descent alone goes the same way.
 *
 * Elsewhere rows of W are read for C by the tiles of one product and changed by those of the other while they are still
 * in the second cache. These are the tiles of two products one after the other, or split as evenly.
 *
 * Bounds: W has n rows of k floats, `step` apart. A tile goes over `vectors` = k / LANES whole vectors, then `rest` < LANES
 * columns in a vector that ends at the row's end (k >= LANES), so it begins in the row. x, one and sums have STEP_MAX (or
 * BOTH_MAX) rows of FEW_ROWS numbers, m <= that. dl_few_pack writes m floats for each of k columns, rounded up to whole
 * vectors, into the scratch of the product (k * m <= DL_OUTER). Stripes cover rows n0..end-1, the last up to n.
 */

/* Rows of a batch that are unrolled: with more, sums of C would leave registers, or code grow. As in descent.py. */
#define DL_BOTH_MAX 12
#define DL_STEP_MAX 32
#define DL_FEW_ROWS 16 /* rows of W at a time */

typedef struct dl_few dl_few;
typedef void dl_few_tile_function(const dl_few *f, int64_t step, const float *x, float *w, float *sums);
/* ahead: numbers of W from a row to that which is fetched beside it. y: A in vectors [k / LANES][m], after the whole
 * ones the last of all columns, zero where others were before. */
struct dl_few {
  dl_few_tile_function *tile;
  int64_t m, n, vectors, rest, step, ahead;
  const float *y;
  float *w, *c;
  const float *p;
  int64_t pm, pk;
  float scale;
  int64_t span;
};

#if DL_LANES == 16 && defined(__AVX512F__)
typedef int32_t dl_vmask __attribute__((vector_size(64)));
typedef int32_t dl_hmask __attribute__((vector_size(32)));
typedef int64_t dl_vpair __attribute__((vector_size(64)));
/* Keeps a vector in a register: compilers would load it again for each use, and loads are what there are most of. */
#define DL_HELD(v) __asm__("" : "+v"(v))

#define DL_WIDENED(v) __builtin_shufflevector(v, (dl_v8){0}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)

/* One vector V of L columns: sums of C, and what is added to W, which is two sums where there are many terms. */
#define DL_FEW_VECTOR(V, L, y, old, back, change)                                            \
  DL_UNROLL_ALL for (int b = 0; b < m; b++) {                                                \
    const int chain = m > DL_BOTH_MAX ? b % 2 : 0;                                           \
    V column = (V) * (const V##u *)(y + b * L);                                              \
    DL_HELD(column);                                                                         \
    DL_UNROLL for (int r = 0; r < rows; r++) {                                               \
      const V factor = x[b * DL_FEW_ROWS + r] - (V){0};                                      \
      if (both) back[r][b] += old[r] * column;                                               \
      change[chain][r] = b > chain ? change[chain][r] + factor * column : factor * column;   \
    }                                                                                        \
  }                                                                                          \
  DL_UNROLL for (int r = 0; r < rows && m > DL_BOTH_MAX; r++) change[0][r] += change[1][r];
/* The last columns, fewer than L: before the others, which they overlap. What is not their own stays as it is. */
#define DL_FEW_LAST(V, MASK, L, back)                                                        \
  {                                                                                          \
    const MASK own = lanes >= (int32_t)(L - f->rest);                                        \
    const float *last = y + f->vectors * m * DL_LANES;                                       \
    float *end = w + f->vectors * DL_LANES + f->rest - L;                                    \
    V old[4], change[2][4];                                                                  \
    DL_UNROLL for (int r = 0; r < rows; r++)                                                 \
      old[r] = (V)((MASK) * (const V##u *)(end + r * step) & own);                           \
    DL_FEW_VECTOR(V, L, last, old, back, change)                                             \
    DL_UNROLL for (int r = 0; r < rows; r++) {                                               \
      const MASK there = (MASK) * (const V##u *)(end + r * step) & ~own;                     \
      *(V##u *)(end + r * step) = (V##u)(there | ((MASK)(old[r] + change[0][r]) & own));     \
    }                                                                                        \
  }

/* The last columns of what is only added to W, half a vector at most, by two rows at a time: (row 0, column 0), (row 1,
 * column 0), (row 0, column 1) and so on. A vector of each row alone takes as many instructions as a whole one. */
DL_INLINE void dl_few_halves(const int m, const int rows, const dl_few *f, int64_t step, const float *x, float *w) {
  const float *last = f->y + f->vectors * m * DL_LANES;
  float *end = w + f->vectors * DL_LANES + f->rest - DL_LANES / 2;
  const dl_hmask own = (dl_hmask){0, 1, 2, 3, 4, 5, 6, 7} >= (int32_t)(DL_LANES / 2 - f->rest);
  dl_vf change[4][2];
  DL_UNROLL_ALL for (int b = 0; b < m; b++) {
    const dl_v8 half = (dl_v8) * (const dl_v8u *)(last + b * (DL_LANES / 2));
    dl_vf column = __builtin_shufflevector(half, half, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    DL_HELD(column);
    DL_UNROLL for (int r = 0; r < rows; r += 2) {
      int64_t both;
      memcpy(&both, x + b * DL_FEW_ROWS + r, sizeof both);
      const dl_vf factors = (dl_vf)(both - (dl_vpair){0});
      dl_vf *to = &change[b % 4][r / 2];
      *to = b < 4 ? factors * column : *to + factors * column;
    }
  }
  dl_hmask made[4];
  DL_UNROLL for (int r = 0; r < rows; r += 2) {
    dl_vf sum = change[0][r / 2];
    DL_UNROLL for (int b = 1; b < 4 && b < m; b++) sum += change[b][r / 2];
    const dl_v8 even = __builtin_shufflevector(sum, sum, 0, 2, 4, 6, 8, 10, 12, 14);
    const dl_v8 odd = __builtin_shufflevector(sum, sum, 1, 3, 5, 7, 9, 11, 13, 15);
    DL_UNROLL for (int o = 0; o < 2; o++) {
      const dl_v8 old = (dl_v8) * (const dl_v8u *)(end + (r + o) * step);
      made[r + o] = ((dl_hmask)old & ~own) | ((dl_hmask)(old + (o ? odd : even)) & own);
    }
  }
  DL_UNROLL for (int r = 0; r < rows; r++) *(dl_v8u *)(end + r * step) = (dl_v8u)made[r];
}

/* A few rows of W, `step` apart; `rest`: k is no multiple of a vector, by at most half a one if it is 2. What is only
 * added to W goes three vectors of columns at a time: of processors with two whole units, which do two multiply-adds a
 * cycle and have each sum again after four, eight sums would leave none to spare; and a number of x then is loaded for
 * three multiply-adds. */
DL_INLINE void dl_few_tile(const int m, const int rows, const _Bool both, const int rest, const dl_few *f,
                           int64_t step, const float *x, float *w, float *sums) {
  const float *y = f->y;
  dl_vf back[2][DL_BOTH_MAX], old[4], change[2][4];
  DL_UNROLL for (int r = 0; r < rows && both; r++)
    DL_UNROLL for (int b = 0; b < m; b++) back[r][b] = (dl_vf){0};
  if (rest == 1) {
    const dl_vmask lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    DL_FEW_LAST(dl_vf, dl_vmask, DL_LANES, back)
  }
  if (rest == 2 && !both) {
    dl_few_halves(m, rows, f, step, x, w);
  } else if (rest == 2) {
    const dl_hmask lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    dl_v8 half[2][DL_BOTH_MAX];
    DL_UNROLL for (int r = 0; r < rows; r++)
      DL_UNROLL for (int b = 0; b < m; b++) half[r][b] = (dl_v8){0};
    DL_FEW_LAST(dl_v8, dl_hmask, 8, half)
    DL_UNROLL for (int r = 0; r < rows; r++)
      DL_UNROLL for (int b = 0; b < m; b++) back[r][b] = DL_WIDENED(half[r][b]);
  }
  const int64_t ahead = f->ahead;
  int64_t left = f->vectors;
  DL_ROLLED for (; !both && left >= 3; left -= 3, y += 3 * m * DL_LANES, w += 3 * DL_LANES) {
    dl_vf sum[4][3];
    DL_UNROLL for (int r = 0; r < rows; r++)
      DL_UNROLL for (int v = 0; v < 3; v++) DL_PREFETCH_L2(w + ahead + r * step + v * DL_LANES);
    DL_UNROLL_ALL for (int b = 0; b < m; b++) {
      dl_vf column[3];
      DL_UNROLL for (int v = 0; v < 3; v++) {
        column[v] = dl_load(y + (v * m + b) * DL_LANES);
        DL_HELD(column[v]);
      }
      DL_UNROLL for (int r = 0; r < rows; r++) {
        const dl_vf factor = x[b * DL_FEW_ROWS + r] - (dl_vf){0};
        DL_UNROLL for (int v = 0; v < 3; v++)
          sum[r][v] = b ? sum[r][v] + factor * column[v] : factor * column[v];
      }
    }
    /* All are read before one is stored: rows may be the same one. */
    DL_UNROLL for (int r = 0; r < rows; r++)
      DL_UNROLL for (int v = 0; v < 3; v++) sum[r][v] += dl_load(w + r * step + v * DL_LANES);
    DL_UNROLL for (int r = 0; r < rows; r++)
      DL_UNROLL for (int v = 0; v < 3; v++) dl_store(w + r * step + v * DL_LANES, sum[r][v]);
  }
  DL_ROLLED for (; left > 0; left--, y += m * DL_LANES, w += DL_LANES) {
    DL_UNROLL for (int r = 0; r < rows; r++) {
      old[r] = dl_load(w + r * step);
      DL_PREFETCH_L2(w + ahead + r * step);
    }
    DL_FEW_VECTOR(dl_vf, DL_LANES, y, old, back, change)
    DL_UNROLL for (int r = 0; r < rows; r++) dl_store(w + r * step, old[r] + change[0][r]);
  }
  DL_UNROLL for (int r = 0; r < rows && both; r++)
    DL_UNROLL for (int b = 0; b < m; b++) dl_store(sums + (b * DL_FEW_ROWS + r) * DL_LANES, back[r][b]);
}

/* The tiles for M rows of a batch, REST as above: a program has those that it needs. */
#define DL_FEW_TILE(NAME, M, ROWS, BOTH, REST)                                                         \
  DL_FUNCTION void NAME(const dl_few *f, int64_t step, const float *x, float *w, float *sums) {        \
    dl_few_tile(M, ROWS, BOTH, REST, f, step, x, w, sums);                                             \
  }
#define DL_BOTH(M, REST) DL_FEW_TILE(dl_both_##M##_##REST, M, 2, 1, REST)
#define DL_STEP(M, REST) DL_FEW_TILE(dl_step_##M##_##REST, M, 4, 0, REST)
#define DL_BOTH_OF(M, REST) dl_both_##M##_##REST
#define DL_STEP_OF(M, REST) dl_step_##M##_##REST

/* The sums over the lanes of eight vectors. */
DL_INLINE void dl_lane_sums(const float *from, float *to) {
  dl_v8 s[8], t[4];
  DL_UNROLL for (int i = 0; i < 8; i++)
    s[i] = (dl_v8) * (const dl_v8u *)(from + i * 16) + (dl_v8) * (const dl_v8u *)(from + i * 16 + 8);
  DL_UNROLL for (int i = 0; i < 4; i++)
    t[i] = DL_LOW(s[2 * i], s[2 * i + 1]) + DL_HIGH(s[2 * i], s[2 * i + 1]);
  const dl_v8 low = DL_LOW2(t[0], t[1]) + DL_HIGH2(t[0], t[1]), high = DL_LOW2(t[2], t[3]) + DL_HIGH2(t[2], t[3]);
  *(dl_v8u *)to = (dl_v8u)(DL_LOW4(low, high) + DL_HIGH4(low, high));
}

DL_FUNCTION void dl_few_pack(int64_t m, int64_t k, const float *a, int64_t am, int64_t ak, float *to) {
  for (int64_t j = 0; j < k; j += DL_LANES) {
    const int64_t count = k - j <= DL_LANES / 2 ? DL_LANES / 2 : DL_LANES, at = j + count <= k ? j : k - count;
    for (int64_t b = 0; b < m; b++, to += count) {
      const float *from = a + b * am + at * ak;
      if (ak == 1 && count == DL_LANES) {
        dl_store(to, dl_load(from));
      } else {
        for (int64_t l = 0; l < count; l++) to[l] = from[l * ak];
      }
      for (int64_t l = 0; l < j - at; l++) to[l] = 0;
    }
  }
}

/* Rows n0 to n1 of W, and of C turned if there is one. What is left of less than a tile goes through a tile whose rows
 * are all the same one. */
DL_FUNCTION void dl_few_rows(const dl_few *f, int64_t n0, int64_t n1) {
  const int64_t m = f->m, tile = f->c ? 2 : 4;
  float DL_ALIGN x[DL_STEP_MAX * DL_FEW_ROWS], one[DL_STEP_MAX * DL_FEW_ROWS];
  float DL_ALIGN sums[DL_BOTH_MAX * DL_FEW_ROWS * DL_LANES];
  for (; n0 < n1; n0 += DL_FEW_ROWS) {
    const int64_t rows = n1 - n0 < DL_FEW_ROWS ? n1 - n0 : DL_FEW_ROWS;
    for (int64_t b = 0; b < m; b++) {
      const float *p = f->p + n0 * f->pm + b * f->pk;
      int64_t r = 0;
      for (; f->pm == 1 && r + 8 <= rows; r += 8)
        *(dl_v8 *)(x + b * DL_FEW_ROWS + r) = f->scale * (dl_v8) * (const dl_v8u *)(p + r);
      for (; r < rows; r++) x[b * DL_FEW_ROWS + r] = f->scale * p[r * f->pm];
    }
    float *w = f->w + n0 * f->step;
    int64_t r = 0;
    for (; r + tile <= rows; r += tile, w += tile * f->step) f->tile(f, f->step, x + r, w, sums + r * DL_LANES);
    for (; r < rows; r++, w += f->step) {
      for (int64_t i = 0; i < m * DL_FEW_ROWS; i++) one[i] = x[i / DL_FEW_ROWS * DL_FEW_ROWS + r];
      f->tile(f, 0, one, w, sums + r * DL_LANES);
    }
    for (int64_t b = 0; f->c && b < m; b++) {
      float made[DL_FEW_ROWS];
      for (r = 0; r < rows; r += 8) dl_lane_sums(sums + (b * DL_FEW_ROWS + r) * DL_LANES, made + r);
      memcpy(f->c + b * f->n + n0, made, (size_t)rows * 4);
    }
  }
}

DL_FUNCTION void dl_few_chunk(void *context, int64_t chunk, void *scratch) {
  const dl_few *f = (const dl_few *)context;
  const int64_t n0 = chunk * f->span;
  (void)scratch;
  dl_few_rows(f, n0, n0 + f->span < f->n ? n0 + f->span : f->n);
}

/* W += scale * P Q by a tile for so many rows of Q, and C = Q W' if there is a C. */
DL_FUNCTION dl_few dl_few_start(dl_few_tile_function *tile, int64_t m, int64_t n, int64_t k, const float *q, int64_t qm,
                                int64_t qk, float *w, float *c, const float *p, int64_t pm, int64_t pk, float scale,
                                float *scratch) {
  dl_few_pack(m, k, q, qm, qk, scratch);
  return (dl_few){tile, m, n, k / DL_LANES, k % DL_LANES, k, DL_FEW_ROWS * k, scratch, w, c, p, pm, pk, scale, n};
}

DL_FUNCTION void dl_few_run(dl_few *f) {
  const int64_t work = f->m * f->n * f->step;
  if (dl_has_pool() && work >= DL_PARALLEL_WORK) f->span = dl_span(f->n, DL_FEW_ROWS, DL_CHUNKS_MAX);
  dl_parallel((f->n + f->span - 1) / f->span, dl_few_chunk, f, 0, 0);
}
#else
#define DL_BOTH(M, REST)
#define DL_STEP(M, REST)
#define DL_BOTH_OF(M, REST) 0
#define DL_STEP_OF(M, REST) 0
#define dl_few_start(...) ((dl_few){0})
#define dl_few_run(f) ((void)0)
#define dl_few_rows(f, n0, n1) ((void)0)
#endif

/* C += scale * A B for rows of C that lie one after the other, by a tile for k if there is one. */
DL_FUNCTION void dl_gemm_step_f32(dl_few_tile_function *tile, int64_t m, int64_t n, int64_t k, const float *a,
                                  int64_t am, int64_t ak, const float *b, int64_t bk, int64_t bn, float *c, float scale,
                                  float *scratch) {
  if (!tile || n < DL_LANES || k * n > DL_OUTER) {
    dl_gemm_add_f32(m, n, k, a, am, ak, b, bk, bn, c, scale, scratch);
    return;
  }
  dl_few f = dl_few_start(tile, k, m, n, b, bk, bn, c, 0, a, am, ak, scale, scratch);
  dl_few_run(&f);
}

/* Rows of W at a time, some tiles of both products; the last time up to a tile more, so that no tile is of one row
 * alone, of which compilers make something else. */
#define DL_STRIPE (2 * DL_MR)
#ifndef DL_STRIPED
#define DL_STRIPED DL_CACHE /* numbers: a smaller W stays in that cache between two products */
#endif

typedef struct {
  const dl_gemm *back, *step;
  const dl_few *few; /* in place of `step`, if it has a tile */
  int64_t stripes, span;
} dl_descent;

DL_FUNCTION void dl_descent_chunk(void *context, int64_t chunk, void *scratch) {
  const dl_descent *d = (const dl_descent *)context;
  const int64_t last = (chunk + 1) * d->span < d->stripes ? (chunk + 1) * d->span : d->stripes;
  for (int64_t s = chunk * d->span; s < last; s++) {
    const int64_t n0 = s * DL_STRIPE, end = s + 1 == d->stripes ? d->back->n : n0 + DL_STRIPE;
    dl_gemm_turned(d->back, 0, d->back->m, n0, end, (float *)scratch);
    if (d->few->tile) {
      dl_few_rows(d->few, n0, end);
    } else {
      dl_gemm_rows(d->step, 0, d->step->k, n0, end, d->step->panels, DL_NR, d->step->k * DL_NR, 1, 0, d->step->n);
    }
  }
}

/* The scratches are as of the two products by themselves (dl_gemm_into). `both`: a tile for m rows where Q is A, or 0;
 * `step`: one for `depth` rows, or 0. */
DL_FUNCTION void dl_gemm_both_f32(dl_few_tile_function *both, dl_few_tile_function *step, int64_t m, int64_t n,
                                  int64_t k, const float *a, int64_t am, int64_t ak, float *w, float *c, int64_t depth,
                                  const float *p, int64_t pm, int64_t pk, const float *q, int64_t qk, int64_t qn,
                                  float scale, float *turned, float *panels) {
  if (both && k >= DL_LANES && k * m <= DL_OUTER) {
    dl_few f = dl_few_start(both, m, n, k, a, am, ak, w, c, p, pm, pk, scale, turned);
    dl_few_run(&f);
    return;
  }
  const dl_target made = {c, n, 0, 0, 0, 1.0f}, changed = {w, k, 0, 0, 1, scale};
  if (n * k < DL_STRIPED || DL_MR > DL_NR || n < DL_MR || m > DL_TURNED || k * m > DL_OUTER || depth > DL_SHORT ||
      depth * k > DL_OUTER) {
    dl_gemm_into(m, n, k, a, am, ak, w, 1, k, &made, turned);
    dl_gemm_step_f32(step, n, k, depth, p, pm, pk, q, qk, qn, w, scale, panels);
    return;
  }
  const dl_gemm back = {0, m, n, k, 0, 0, 0, w, 1, k, turned, &made, 0, 0, 0};
  const dl_gemm then = {0, n, k, depth, p, pm, pk, 0, 0, 0, panels, &changed, 0, 0, 0};
  dl_few few = {0};
  const int64_t stripes = (n + DL_STRIPE - DL_MR) / DL_STRIPE;
  dl_descent d = {&back, &then, &few, stripes > 0 ? stripes : 1, 0};
  d.span = dl_has_pool() && m * n * k >= DL_PARALLEL_WORK ? dl_span(d.stripes, 1, DL_CHUNKS_MAX) : d.stripes;
  dl_pack_all(k, m, a, ak, am, turned);
  if (step && k >= DL_LANES) {
    few = dl_few_start(step, depth, n, k, q, qk, qn, w, 0, p, pm, pk, scale, panels);
    few.ahead = DL_STRIPE * k; /* the next stripe, all of it */
  } else {
    dl_pack_scaled(&changed, depth, k, q, qk, qn, panels);
  }
  dl_parallel((d.stripes + d.span - 1) / d.span, dl_descent_chunk, &d, turned, 0);
}
