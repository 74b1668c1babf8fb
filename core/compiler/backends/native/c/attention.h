/* Attention and its derivative, a block of queries times a block of keys at a time, so that scores stay in the caches
 * (Dao et al. 2022, "FlashAttention"; Rabe and Staats 2021 for the memory). Each head of each sequence is a chunk.
 *
 * q [n][t][h][d], k [n][s][h][d], v [n][s][h][e]; see ops/attention.py. What is larger than a block is k and v of one
 * head in panels, and what is computed.
 *
 * Bounds: chunk < n h. Blocks have rows <= queries and columns <= keys, so scores (queries * keys), tops, sums and panels fit
 * the scratch of attention.py. `keys` is a multiple of NR, so dl_full(count) <= keys: what is beyond `count` in a row of
 * scores is the row's own. A mask is read at i mt + j0 + j, j < columns, and 0 for axes of size 1. All sizes are >= 1 (type
 * rule); offsets are those of elements of q, k, v and the results. What dl_ask asks for may lie beyond them: nothing is
 * read there.
 */

#define DL_UNSEEN 1e30f
/* Blocks are of `queries` and `keys`, which are whole panels. The mask is null where there is none; mn, mh and mt are its distances from one sequence, head and query to the next. */
typedef struct {
  int64_t n, h, t, s, d, e, queries, keys;
  _Bool causal;
  int64_t mn, mh, mt;
} dl_heads;

typedef struct {
  const dl_heads *sizes;
  const float *q, *k, *v, *lse, *delta, *g;
  const unsigned char *mask;
  float *out, *logs, *dq, *dk, *dv;
} dl_attending;

/* Where the rows of a head begin. */
typedef struct {
  int64_t q, k, v, out;
} dl_places;
DL_INLINE dl_places dl_head(const dl_heads *z, int64_t chunk) {
  const int64_t n = chunk / z->h, h = chunk % z->h, dh = z->d * z->h, eh = z->e * z->h;
  return (dl_places){n * z->t * dh + h * z->d, n * z->s * dh + h * z->d, n * z->s * eh + h * z->e,
                     n * z->t * eh + h * z->e};
}

/* Asks for a row of a head. Rows lie apart, in an order that no processor foresees: so while the scores of a query are
 * gone over, that row of the next head is fetched. */
DL_INLINE void dl_ask(const float *row, int64_t count) {
  for (int64_t c = 0; c < count; c += DL_LINE) DL_PREFETCH_L2(row + c);
}

/* Columns as whole panels. */
DL_INLINE int64_t dl_whole(int64_t columns) { return (columns + DL_NR - 1) / DL_NR * DL_NR; }

/* Rows of k (or v) in panels, where columns of the panels are `columns`: k0 of `all` rows on. */
DL_FUNCTION void dl_block_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                                  const float *panels, int64_t k0, int64_t all, float *to, int64_t step, _Bool add) {
  const dl_target c = {to, step, 0, 0, add, 1.0f};
  const dl_gemm g = {0, m, n, k, a, am, ak, 0, 0, 0, panels, &c, 0, 0, 0};
  const int64_t whole = n / DL_NR * DL_NR;
  if (whole > 0) dl_gemm_rows(&g, 0, k, 0, m, panels + k0 * DL_NR, DL_NR, all * DL_NR, 1, 0, whole);
  if (n > whole)
    dl_gemm_rows(&g, 0, k, 0, m, panels + whole * all + k0 * dl_width(n - whole), DL_NR, all * DL_NR, 1, whole, n);
}

/* How many keys query i may look at, of `count` from j on. */
DL_INLINE int64_t dl_seen_of(const dl_heads *z, int64_t i, int64_t j, int64_t count) {
  if (!z->causal) return count;
  const int64_t seen = i + z->s - z->t + 1 - j;
  return seen < 0 ? 0 : seen < count ? seen : count;
}

/* Numbers up to whole vectors of them. */
DL_INLINE int64_t dl_full(int64_t count) { return (count + DL_LANES - 1) / DL_LANES * DL_LANES; }

/* Scores that are not to be seen become -inf, those beyond `count` up to a whole vector too. */
DL_INLINE void dl_hide(float *restrict p, int64_t count, const unsigned char *mask) {
  if (mask)
    DL_INDEPENDENT for (int64_t j = 0; j < count; j++) p[j] = mask[j] ? p[j] : -__builtin_inff();
  for (int64_t j = count; j < dl_full(count); j++) p[j] = -__builtin_inff();
}

/* Over whole vectors of numbers. Lanes fold in fours, as one after the other waits for each. */
#if DL_LANES == 1
DL_INLINE float dl_row_sum(const float *p, int64_t full) {
  float a = 0.0f;
  for (int64_t j = 0; j < full; j++) a += p[j];
  return a;
}
DL_INLINE float dl_row_top(const float *p, int64_t full, float top) {
  for (int64_t j = 0; j < full; j++) top = dl_max_f32(top, p[j]);
  return top;
}
#else
typedef int32_t dl_i4 __attribute__((vector_size(16)));
DL_INLINE float dl_row_sum(const float *p, int64_t full) {
  dl_v4 a = {0}, b = {0};
  dl_vf wide[2] = {{0}, {0}};
  int64_t j = 0;
  for (; j + 2 * DL_LANES <= full; j += 2 * DL_LANES) {
    wide[0] += dl_load(p + j);
    wide[1] += dl_load(p + j + DL_LANES);
  }
  if (j < full) wide[0] += dl_load(p + j);
  wide[0] += wide[1];
  const float *at = (const float *)&wide[0];
  for (int l = 0; l < DL_LANES; l += 8) {
    a += (dl_v4) * (const dl_v4u *)(at + l);
    if (DL_LANES > 4) b += (dl_v4) * (const dl_v4u *)(at + (l + 4) % DL_LANES);
  }
  a += b;
  return (a[0] + a[1]) + (a[2] + a[3]);
}
DL_INLINE float dl_row_top(const float *p, int64_t full, float top) {
  dl_vf a = top - (dl_vf){0};
  for (int64_t j = 0; j < full; j += DL_LANES) {
    const dl_vf b = dl_load(p + j);
    const dl_vi keep = (dl_vi)((a >= b) | (a != a));
    a = (dl_vf)(((dl_vi)a & keep) | ((dl_vi)b & ~keep));
  }
  const float *at = (const float *)&a;
  dl_v4 c = (dl_v4) * (const dl_v4u *)at;
  for (int l = 4; l < DL_LANES; l += 4) {
    const dl_v4 b = (dl_v4) * (const dl_v4u *)(at + l);
    const dl_i4 keep = (dl_i4)((c >= b) | (c != c));
    c = (dl_v4)(((dl_i4)c & keep) | ((dl_i4)b & ~keep));
  }
  return dl_max_f32(dl_max_f32(c[0], c[1]), dl_max_f32(c[2], c[3]));
}
#endif

/* One query's scores of a block of keys as exponentials of what they are above `top`; gives their sum. */
DL_FUNCTION float dl_raise(float *restrict p, int64_t count, int64_t all, float top) {
  const int64_t full = dl_full(count);
  DL_INDEPENDENT for (int64_t j = 0; j < full; j++) p[j] = dl_exp_f32(p[j] - top);
  if (all > full) memset(p + full, 0, (size_t)(all - full) * 4);
  return dl_row_sum(p, full);
}

DL_FUNCTION void dl_attention_head(void *context, int64_t chunk, void *scratch) {
  const dl_attending *x = (const dl_attending *)context;
  const dl_heads *z = x->sizes;
  const int64_t n = chunk / z->h, h = chunk % z->h, dh = z->d * z->h, eh = z->e * z->h;
  const dl_places own = dl_head(z, chunk), next = dl_head(z, chunk + 1);
  const float *q = x->q + own.q, *k = x->k + own.k, *v = x->v + own.v;
  const float *q1 = x->q + next.q, *k1 = x->k + next.k, *v1 = x->v + next.v, *out1 = x->out + next.out;
  float *out = x->out + own.out, *logs = x->logs + n * z->t * z->h + h;
  const unsigned char *mask = x->mask ? x->mask + n * z->mn + h * z->mh : 0;
  const float start = mask || z->causal ? -DL_UNSEEN : -__builtin_inff();
  float *scores = (float *)scratch, *tops = scores + z->queries * z->keys, *sums = tops + z->queries;
  float *keys = sums + z->queries, *values = keys + z->d * dl_whole(z->s);
  dl_pack_all(z->d, z->s, k, 1, dh, keys);
  dl_pack_all(z->s, z->e, v, eh, 1, values);
  for (int64_t i0 = 0; i0 < z->t; i0 += z->queries) {
    const int64_t rows = z->t - i0 < z->queries ? z->t - i0 : z->queries;
    const int64_t reach = dl_seen_of(z, i0 + rows - 1, 0, z->s);
    float *to = out + i0 * eh;
    if (reach == 0)
      for (int64_t i = 0; i < rows; i++) {
        sums[i] = tops[i] = 0.0f;
        memset(to + i * eh, 0, (size_t)z->e * 4);
      }
    for (int64_t j0 = 0; j0 < reach; j0 += z->keys) {
      const int64_t columns = reach - j0 < z->keys ? reach - j0 : z->keys;
      /* Panels of keys are whole but for the last of all. */
      const int64_t wide = dl_whole(columns) < z->s - j0 ? dl_whole(columns) : z->s - j0;
      dl_block_product(rows, wide, z->d, q + i0 * dh, dh, 1, keys + j0 * z->d, 0, z->d, scores, z->keys, 0);
      for (int64_t i = 0; i < rows; i++) {
        float *p = scores + i * z->keys;
        if (j0 == 0) {
          dl_ask(q1 + (i0 + i) * dh, z->d);
          dl_ask(k1 + (i0 + i) * dh, z->d);
          dl_ask(v1 + (i0 + i) * eh, z->e);
          dl_ask(out1 + (i0 + i) * eh, z->e);
        }
        const int64_t seen = dl_seen_of(z, i0 + i, j0, columns);
        const float before = j0 ? tops[i] : start;
        dl_hide(p, seen, mask ? mask + (i0 + i) * z->mt + j0 : 0);
        const float top = dl_row_top(p, dl_full(seen), before), sum = dl_raise(p, seen, columns, top);
        tops[i] = top;
        if (j0 == 0) {
          sums[i] = sum;
          continue;
        }
        const float shrink = top == before ? 1.0f : dl_exp_f32(before - top);
        sums[i] = sums[i] * shrink + sum;
        if (shrink != 1.0f)
          DL_INDEPENDENT for (int64_t c = 0; c < z->e; c++) to[i * eh + c] *= shrink;
      }
      dl_block_product(rows, z->e, columns, scores, z->keys, 1, values, j0, z->s, to, eh, j0 > 0);
    }
    DL_INDEPENDENT for (int64_t i = 0; i < rows; i++) {
      const _Bool nowhere = sums[i] == 0.0f;
      tops[i] = nowhere ? DL_UNSEEN : tops[i] + dl_log_f32(sums[i]);
      sums[i] = 1.0f / (nowhere ? 1.0f : sums[i]);
    }
    for (int64_t i = 0; i < rows; i++) {
      logs[(i0 + i) * z->h] = tops[i];
      DL_INDEPENDENT for (int64_t c = 0; c < z->e; c++) to[i * eh + c] *= sums[i];
    }
  }
}

/* One query's scores as weights, and what comes back to them as what comes back to the scores. */
DL_FUNCTION void dl_unweigh(float *restrict p, float *restrict r, int64_t count, int64_t all, float lse,
                            float delta) {
  const int64_t full = dl_full(count);
  for (int64_t j = count; j < full; j++) r[j] = 0.0f;
  DL_INDEPENDENT for (int64_t j = 0; j < full; j++) {
    const float w = dl_exp_f32(p[j] - lse);
    r[j] = w * (r[j] - delta);
    p[j] = w;
  }
  if (all <= full) return;
  memset(p + full, 0, (size_t)(all - full) * 4);
  memset(r + full, 0, (size_t)(all - full) * 4);
}

/* Keys block by block, and for each of them queries: dk and dv of a block are whole then, dq grows. */
DL_FUNCTION void dl_attention_head_grad(void *context, int64_t chunk, void *scratch) {
  const dl_attending *x = (const dl_attending *)context;
  const dl_heads *z = x->sizes;
  const int64_t n = chunk / z->h, h = chunk % z->h, dh = z->d * z->h, eh = z->e * z->h, lines = n * z->t * z->h + h;
  const dl_places own = dl_head(z, chunk), next = dl_head(z, chunk + 1);
  const float *q = x->q + own.q, *k = x->k + own.k, *v = x->v + own.v, *g = x->g + own.out;
  const float *lse = x->lse + lines, *delta = x->delta + lines;
  const unsigned char *mask = x->mask ? x->mask + n * z->mn + h * z->mh : 0;
  float *dq = x->dq + own.q, *dk = x->dk + own.k, *dv = x->dv + own.v;
  float *scores = (float *)scratch, *back = scores + z->queries * z->keys, *keys = back + z->queries * z->keys;
  float *rows_of_k = keys + z->d * z->keys, *values = rows_of_k + z->keys * dl_whole(z->d);
  float *small = values + z->e * z->keys;
  for (int64_t i = 0; i < z->t; i++) memset(dq + i * dh, 0, (size_t)z->d * 4);
  for (int64_t j0 = 0; j0 < z->s; j0 += z->keys) {
    const int64_t columns = z->s - j0 < z->keys ? z->s - j0 : z->keys;
    dl_pack_all(z->d, columns, k + j0 * dh, 1, dh, keys);
    dl_pack_all(columns, z->d, k + j0 * dh, dh, 1, rows_of_k);
    dl_pack_all(z->e, columns, v + j0 * eh, 1, eh, values);
    for (int64_t j = j0; j < j0 + columns; j++) {
      memset(dk + j * dh, 0, (size_t)z->d * 4);
      memset(dv + j * eh, 0, (size_t)z->e * 4);
    }
    for (int64_t i0 = 0; i0 < z->t; i0 += z->queries) {
      const int64_t rows = z->t - i0 < z->queries ? z->t - i0 : z->queries;
      const int64_t seen = dl_seen_of(z, i0 + rows - 1, j0, columns);
      if (seen == 0) continue;
      const int64_t wide = dl_whole(seen) < columns ? dl_whole(seen) : columns;
      dl_block_product(rows, wide, z->d, q + i0 * dh, dh, 1, keys, 0, z->d, scores, z->keys, 0);
      dl_block_product(rows, wide, z->e, g + i0 * eh, eh, 1, values, 0, z->e, back, z->keys, 0);
      for (int64_t i = 0; i < rows; i++) {
        const int64_t at = i0 + i;
        if (j0 == 0) {
          dl_ask(x->q + next.q + at * dh, z->d);
          dl_ask(x->k + next.k + at * dh, z->d);
          dl_ask(x->v + next.v + at * eh, z->e);
          dl_ask(x->g + next.out + at * eh, z->e);
          dl_ask(x->dq + next.q + at * dh, z->d);
          dl_ask(x->dk + next.k + at * dh, z->d);
          dl_ask(x->dv + next.v + at * eh, z->e);
        }
        const int64_t count = dl_seen_of(z, at, j0, seen);
        dl_hide(scores + i * z->keys, count, mask ? mask + at * z->mt + j0 : 0);
        dl_unweigh(scores + i * z->keys, back + i * z->keys, count, seen, lse[at * z->h], delta[at * z->h]);
      }
      dl_block_product(rows, z->d, seen, back, z->keys, 1, rows_of_k, 0, columns, dq + i0 * dh, dh, 1);
      dl_pack_all(rows, z->e, g + i0 * eh, eh, 1, small);
      dl_block_product(seen, z->e, rows, scores, 1, z->keys, small, 0, rows, dv + j0 * eh, eh, 1);
      dl_pack_all(rows, z->d, q + i0 * dh, dh, 1, small);
      dl_block_product(seen, z->d, rows, back, 1, z->keys, small, 0, rows, dk + j0 * dh, dh, 1);
    }
  }
}
