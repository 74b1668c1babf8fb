/* Products of f32 matrices whose rows are one distance apart, and whose steps of k are: dense layers and their
 * gradients. C[m][n] = sum over k of A[m][k] * B[k][n].
 *
 * The tile is that of gemm.h, but A needs one pointer for three of its rows, as processors add one or two distances to
 * an address for nothing: a tile of ten rows or twelve then needs no more pointers than there are registers. A function
 * goes over as many panels of B as there are, with the same rows of A.
 *
 * Each number of C is one chain of multiply-adds in the order of k, whichever tile it falls into: so results do not
 * depend on how the work is cut.
 *
 * Bounds: A is read at m am + k ak for m < g->m, k < g->k, B at k bk + n bn, C written at m c_step + n: places of views of
 * tensors. Tiles have rows <= what is left (dl_even_rows) and whole panels; what is left of columns goes through `made`,
 * MR * NR floats, of which rows * NR are written, and dl_take_tile stores `columns` of them. scratch: kernels.py's
 * _product_scratch has, for each way, k rows of panels or the steps at a time. A, B and C have <= 2^40
 * elements, so (m n k)^2 = (m k)(k n)(m n) <= 2^120 and work = m n k <= 2^60.
 */

#define DL_GROUPS ((DL_MR + 2) / 3)
#define DL_PAGE 1024 /* numbers */
#define DL_LINE 16 /* numbers that a cache fetches at a time */
#define DL_SOON 16 /* steps of k after which what A has there is fetched: rows far apart are in no order that shows */
#define DL_SOON_B (2 * DL_NR) /* columns after which what a B that is read where it lies has there is fetched */
#define DL_LONG 64 /* steps of k, in which what C has there can be fetched */
#define DL_PANELS 4 /* that are packed at a time */
/* Keeps a pointer that is stepped from being replaced by several of its sums. */
#ifdef DL_PORTABLE
#define DL_STEPPED(p) ((void)0)
#else
#define DL_STEPPED(p) __asm__("" : "+r"(p))
#endif

/* What the tiles of a product have in common. Rows of A are `am` apart and its steps of k `ak`; rows of a panel of B
 * are `b_step` apart, panels `b_jump`, and what lies `ahead` in B is fetched; rows of C are `c_step` apart. `add`: what
 * is computed is added to C. */
typedef struct {
  int64_t k, am, ak, b_step, b_jump, ahead, c_step;
  _Bool add;
} dl_steps;

DL_INLINE void dl_even(const int rows, const int vectors, const dl_steps *s, const float *a, const float *b,
                       int64_t panels, float *c) {
  const int64_t am = s->am, ak = s->ak, b_step = s->b_step, ahead = s->ahead, c_step = s->c_step;
  const int64_t soon = DL_SOON * ak;
  for (; panels > 0; panels--, b += s->b_jump, c += vectors * DL_LANES) {
    dl_vf t[DL_MR][2];
    const float *p[DL_GROUPS], *q = b;
    float *to[DL_GROUPS];
    DL_UNROLL for (int r = 0; r < rows; r++) {
      if (r % 3 == 0) p[r / 3] = a + r * am;
      DL_UNROLL for (int v = 0; v < vectors; v++) t[r][v] = (dl_vf){0};
    }
    if (s->add && s->k >= DL_LONG) {
      DL_ROLLED for (int r = 0; r < rows; r++) {
        DL_PREFETCH(c + r * c_step);
        DL_PREFETCH(c + r * c_step + DL_NR - 1);
      }
    }
    DL_ROLLED for (int64_t k = s->k; k > 0; k--) {
      dl_vf w[2];
      DL_UNROLL for (int v = 0; v < vectors; v++) {
        w[v] = dl_load(q + v * DL_LANES);
        DL_PREFETCH_L2(q + ahead + v * DL_LANES);
      }
      DL_PREFETCH(p[0] + soon);
      q += b_step;
      DL_UNROLL for (int r = 0; r < rows; r++) {
        const dl_vf x = p[r / 3][r % 3 * am] - (dl_vf){0};
        DL_UNROLL for (int v = 0; v < vectors; v++) t[r][v] += x * w[v];
        if (r % 3 == 2 || r == rows - 1) {
          p[r / 3] += ak;
          DL_STEPPED(p[r / 3]);
        }
      }
      if (rows * vectors == 1) DL_CHAINED(t[0][0]);
    }
    DL_UNROLL for (int r = 0; r < rows; r += 3) {
      to[r / 3] = c + r * c_step;
      DL_STEPPED(to[r / 3]);
    }
    if (s->add) {
      DL_UNROLL for (int r = 0; r < rows; r++) {
        float *row = to[r / 3] + r % 3 * c_step;
        DL_UNROLL for (int v = 0; v < vectors; v++) dl_store(row + v * DL_LANES, dl_load(row + v * DL_LANES) + t[r][v]);
      }
    } else {
      DL_UNROLL for (int r = 0; r < rows; r++) {
        float *row = to[r / 3] + r % 3 * c_step;
        DL_UNROLL for (int v = 0; v < vectors; v++) dl_store(row + v * DL_LANES, t[r][v]);
      }
    }
  }
}

typedef void dl_even_function(const dl_steps *, const float *, const float *, int64_t, float *);
#define DL_EVEN(NAME, R, V)                                                                                       \
  DL_FUNCTION void NAME(const dl_steps *s, const float *a, const float *b, int64_t panels, float *c) {            \
    dl_even(R, V, s, a, b, panels, c);                                                                            \
  }
/* As of the tiles of gemm.h; and of half a vector of columns. */
#ifndef DL_ROWS_EVEN
#undef DL_ROWS_EDGE
#undef DL_ROWS_HALF
#define DL_ROWS_EVEN ~0u
#define DL_ROWS_EDGE ~0u
#define DL_ROWS_HALF ~0u
#undef DL_IF
#define DL_IF(SET, R, F) F
#endif
#define DL_EVENS(R) DL_EVEN(dl_even_##R, R, 2)
#define DL_EDGES(R) DL_EVEN(dl_edge_##R, R, 1)
DL_EVENS(1) DL_EVENS(2) DL_EVENS(3) DL_EVENS(4) DL_EDGES(1) DL_EDGES(2) DL_EDGES(3) DL_EDGES(4)
#if DL_MR >= 6
DL_EVENS(5) DL_EVENS(6) DL_EDGES(5) DL_EDGES(6)
#endif
#if DL_MR >= 12
DL_EVENS(7) DL_EVENS(8) DL_EVENS(9) DL_EVENS(10) DL_EVENS(11) DL_EVENS(12)
#endif
#define DL_IF_EVEN(R) DL_IF(DL_ROWS_EVEN, R, dl_even_##R)
#define DL_IF_EDGE(R) DL_IF(DL_ROWS_EDGE, R, dl_edge_##R)
static dl_even_function *const dl_evens[DL_MR] __attribute__((unused)) = {
    dl_even_1, DL_IF_EVEN(2), DL_IF_EVEN(3), DL_IF_EVEN(4),
#if DL_MR >= 6
    DL_IF_EVEN(5), DL_IF_EVEN(6),
#endif
#if DL_MR >= 12
    DL_IF_EVEN(7), DL_IF_EVEN(8), DL_IF_EVEN(9), DL_IF_EVEN(10), DL_IF_EVEN(11), DL_IF_EVEN(12),
#endif
};
static dl_even_function *const dl_edges[] __attribute__((unused)) = {
    dl_edge_1, DL_IF_EDGE(2), DL_IF_EDGE(3), DL_IF_EDGE(4),
#if DL_MR >= 6
    DL_IF_EDGE(5), DL_IF_EDGE(6),
#endif
};
#define DL_EDGE_MAX (DL_MR < 6 ? DL_MR : 6)

#if DL_LANES > 1
typedef float dl_v4 __attribute__((vector_size(16)));
typedef float dl_v4u __attribute__((vector_size(16), aligned(4), may_alias));
#endif
/* Columns of C beside the last panel, one vector of them. What processors do with tiles of half the rows is as quick, so
 * there are no larger ones. */
DL_FUNCTION void dl_even_edge(int64_t rows, const dl_steps *s, const float *a, const float *b, float *c) {
  for (int part; rows > 0; rows -= part, a += part * s->am, c += part * s->c_step) {
    part = dl_rows_there(dl_even_rows(rows, DL_EDGE_MAX), DL_ROWS_EDGE);
    dl_edges[part - 1](s, a, b, 1, c);
  }
}

#if defined(DL_HALVES) && DL_LANES >= 8 && DL_MR >= 6
/* Columns of C that fill at most half a vector. */
typedef float dl_vh __attribute__((vector_size(2 * DL_LANES)));
typedef float dl_vhu __attribute__((vector_size(2 * DL_LANES), aligned(4), may_alias));
DL_INLINE void dl_half(const int rows, const dl_steps *s, const float *a, const float *b, float *c) {
  dl_vh t[DL_MR];
  const float *p[DL_GROUPS];
  const int64_t am = s->am, ak = s->ak, b_step = s->b_step;
  DL_UNROLL for (int r = 0; r < rows; r++) {
    if (r % 3 == 0) p[r / 3] = a + r * am;
    t[r] = (dl_vh){0};
  }
  DL_ROLLED for (int64_t k = s->k; k > 0; k--, b += b_step) {
    const dl_vh w = (dl_vh) * (const dl_vhu *)b;
    DL_UNROLL for (int r = 0; r < rows; r++) {
      t[r] += (p[r / 3][r % 3 * am] - (dl_vh){0}) * w;
      if (r % 3 == 2 || r == rows - 1) {
        p[r / 3] += ak;
        DL_STEPPED(p[r / 3]);
      }
    }
    if (rows == 1) DL_CHAINED(t[0]);
  }
  DL_UNROLL for (int r = 0; r < rows; r++) *(dl_vhu *)(c + r * s->c_step) = (dl_vhu)t[r];
}
typedef void dl_half_function(const dl_steps *, const float *, const float *, float *);
#define DL_HALF_TILE(NAME, R)                                                                                     \
  DL_FUNCTION void NAME(const dl_steps *s, const float *a, const float *b, float *c) { dl_half(R, s, a, b, c); }
DL_HALF_TILE(dl_half_1, 1) DL_HALF_TILE(dl_half_2, 2) DL_HALF_TILE(dl_half_3, 3) DL_HALF_TILE(dl_half_4, 4)
DL_HALF_TILE(dl_half_5, 5) DL_HALF_TILE(dl_half_6, 6) DL_HALF_TILE(dl_half_most, DL_MR)
#define DL_IF_HALF(R) DL_IF(DL_ROWS_HALF, R, dl_half_##R)
static dl_half_function *const dl_halves[] = {dl_half_1,     DL_IF_HALF(2), DL_IF_HALF(3),
                                              DL_IF_HALF(4), DL_IF_HALF(5), DL_IF_HALF(6)};
/* Split evenly: a tile of one row, of which compilers make something else, is there for a block of one. */
DL_FUNCTION void dl_half_edge(int64_t rows, const dl_steps *s, const float *a, const float *b, float *c) {
  if (rows == DL_MR && DL_ROWS_HALF >> DL_MR & 1) {
    dl_half_most(s, a, b, c);
    return;
  }
  for (int part; rows > 0; rows -= part, a += part * s->am, c += part * s->c_step) {
    part = dl_rows_there(dl_even_rows(rows, 6), DL_ROWS_HALF);
    dl_halves[part - 1](s, a, b, c);
  }
}
#define DL_HALF (DL_LANES / 2)
#else
#define DL_HALF 0
#define dl_half_edge dl_even_edge
#endif

/* Columns of a tile, from `skip` on, to where they go; times a number if they are added. */
DL_FUNCTION void dl_take_tile(const dl_target *c, const float *made, int64_t skip, int64_t m0, int64_t rows, int64_t n0,
                              int64_t columns, _Bool more, float scale) {
  made += skip;
  if (c->after) {
    c->after(c->context, made, m0, rows, n0, columns);
    return;
  }
  const _Bool add = more || c->add;
  float *to = c->data + m0 * c->step + n0;
  for (int64_t r = 0; r < rows; r++, to += c->step, made += DL_NR) {
    int64_t j = 0;
#if DL_LANES >= 8
    if (columns >= 8 && columns <= 16) { /* two vectors that may overlap, of what was there before */
      const int64_t last = columns - 8;
      dl_v8 x = (dl_v8) * (const dl_v8u *)made, y = (dl_v8) * (const dl_v8u *)(made + last);
      if (add) {
        x = (dl_v8) * (const dl_v8u *)to + scale * x;
        y = (dl_v8) * (const dl_v8u *)(to + last) + scale * y;
      }
      *(dl_v8u *)to = (dl_v8u)x;
      *(dl_v8u *)(to + last) = (dl_v8u)y;
      continue;
    }
#endif
#if DL_LANES > 1
    for (; j + 4 <= columns; j += 4) {
      const dl_v4 x = (dl_v4) * (const dl_v4u *)(made + j);
      *(dl_v4u *)(to + j) = (dl_v4u)(add ? (dl_v4) * (const dl_v4u *)(to + j) + scale * x : x);
    }
#endif
    for (; j < columns; j++) to[j] = add ? to[j] + scale * made[j] : made[j];
  }
}

/* A product of which `part` computes rows m0 to m1 and columns n0 to n1: one chunk of it, or the whole. The columns of
 * a chunk are whole panels, but for the last. */
typedef struct dl_gemm dl_gemm;
typedef void dl_gemm_part(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch);
struct dl_gemm {
  dl_gemm_part *part;
  int64_t m, n, k;
  const float *a;
  int64_t am, ak;
  const float *b;
  int64_t bk, bn;
  const float *panels; /* B, or A where that is packed, if all of it is */
  const dl_target *c;
  int64_t m_span, n_span, across;
};

/* Rows m0 to m1 of C, columns n0 to n1, of terms k0 to k0 + k. `b` begins with column n0; packed it has the last
 * columns in a panel of their own width, and else at least LANES columns lie before n1. Where the target adds, B was
 * multiplied by its number. As many panels at a time go over the rows as stay in the first cache. */
DL_FUNCTION void dl_gemm_rows(const dl_gemm *g, int64_t k0, int64_t k, int64_t m0, int64_t m1, const float *b,
                              int64_t b_step, int64_t b_jump, _Bool packed, int64_t n0, int64_t n1) {
  const dl_target *c = g->c;
  const _Bool more = k0 > 0;
  const dl_steps into = {k, g->am, g->ak, b_step, b_jump, packed ? 0 : DL_SOON_B, c->step, more || c->add};
  const dl_steps aside = {k, g->am, g->ak, b_step, b_jump, packed ? 0 : DL_SOON_B, DL_NR, 0};
  int64_t group = (n1 - n0) / DL_NR;
  /* Where a panel is larger than that cache, a few of them go over some rows before the next ones are read. */
  const _Bool stays = k * DL_NR <= DL_L1_FLOATS || !packed || group > DL_PANELS;
  if (m1 - m0 > DL_MR && stays && group > DL_L1_FLOATS / (k * DL_NR + 1)) group = DL_L1_FLOATS / (k * DL_NR + 1) + 1;
  /* Rows of A that lie a page apart share the few places that the first cache has for them. */
  const int64_t most = m1 - m0 > DL_MR && g->am % DL_PAGE == 0 ? DL_POINTERS : DL_MR;
  const unsigned set = n1 - n0 > DL_LANES ? DL_ROWS_EVEN : ~0u; /* of fewer columns there are but edges */
  float DL_ALIGN made[DL_MR * DL_NR];
  while (n0 < n1) {
    const int64_t left = (n1 - n0) / DL_NR, panels = left < group ? left : group;
    const float *next = b + panels * b_jump;
    const int64_t edge = n0 + panels * DL_NR, rest = panels < left ? 0 : n1 - edge;
    int rows;
    for (int64_t m = m0; m < m1; m += rows) {
      rows = dl_rows_there(dl_even_rows(m1 - m, most), set);
      const float *a = g->a + m * g->am + k0 * g->ak;
      dl_even_function *const tile = dl_evens[rows - 1];
      if (!c->after) {
        if (panels > 0) tile(&into, a, b, panels, c->data + m * c->step + n0);
      } else {
        for (int64_t j = 0; j < panels; j++) {
          tile(&aside, a, b + j * b_jump, 1, made);
          dl_take_tile(c, made, 0, m, rows, n0 + j * DL_NR, DL_NR, more, 1.0f);
        }
      }
      if (packed && rest) {
        dl_steps edged = aside;
        edged.b_step = dl_width(rest);
        if (rest > DL_LANES) {
          tile(&edged, a, next, 1, made);
        } else if (rest > DL_HALF) {
          dl_even_edge(rows, &edged, a, next, made);
        } else {
          dl_half_edge(rows, &edged, a, next, made);
        }
        dl_take_tile(c, made, 0, m, rows, edge, rest, more, 1.0f);
      }
      for (int64_t j = 0; j < rest && !packed; j += DL_LANES) {
        const int64_t columns = rest - j < DL_LANES ? rest - j : DL_LANES;
        const int64_t skip = (columns > DL_HALF ? DL_LANES : DL_HALF) - columns;
        (columns > DL_HALF ? dl_even_edge : dl_half_edge)(rows, &aside, a, next + j - skip, made);
        dl_take_tile(c, made, skip, m, rows, edge + j, columns, more, 1.0f);
      }
    }
    b = next;
    n0 = edge + rest;
  }
}

DL_FUNCTION void dl_gemm_chunk(void *context, int64_t chunk, void *scratch) {
  const dl_gemm *g = (const dl_gemm *)context;
  const int64_t m0 = chunk / g->across * g->m_span, n0 = chunk % g->across * g->n_span;
  const int64_t m1 = m0 + g->m_span + DL_MR <= g->m ? m0 + g->m_span : g->m;
  const int64_t n1 = n0 + g->n_span + DL_MR <= g->n ? n0 + g->n_span : g->n;
  g->part(g, m0, m1, n0, n1, (float *)scratch);
}

/* The number of chunks. What is left of less than a tile goes to the last one: of a tile of one row compilers may make
 * something else, and one thread has none where its rows are split evenly. */
DL_INLINE int64_t dl_parts(int64_t size, int64_t span) { return size > span ? (size + span - DL_MR) / span : 1; }

/* Runs a product, in chunks of so many rows and columns at least if it is large. `floats`: of scratch, for each. */
DL_FUNCTION void dl_gemm_run(dl_gemm *g, int64_t m_unit, int64_t n_unit, float *scratch, int64_t floats) {
  const int64_t work = g->m * g->n * g->k;
  if (!dl_has_pool() || work < DL_PARALLEL_WORK) {
    g->part(g, 0, g->m, 0, g->n, scratch);
    return;
  }
  const int64_t most = work / (DL_PARALLEL_WORK / 4) < DL_CHUNKS_MAX ? work / (DL_PARALLEL_WORK / 4) : DL_CHUNKS_MAX;
  g->n_span = dl_span(g->n, n_unit, most);
  g->across = dl_parts(g->n, g->n_span);
  g->m_span = dl_span(g->m, m_unit, most / g->across > 0 ? most / g->across : 1);
  dl_parallel(g->across * dl_parts(g->m, g->m_span), dl_gemm_chunk, g, scratch, 4 * floats);
}

/* B in panels, times what the target multiplies by. */
DL_FUNCTION void dl_pack_scaled(const dl_target *c, int64_t k, int64_t n, const float *b, int64_t bk, int64_t bn,
                                float *to) {
  dl_pack_all(k, n, b, bk, bn, to);
  if (!c->add || c->scale == 1.0f) return;
  const int64_t whole = n / DL_NR * DL_NR, count = k * (whole + (n > whole ? dl_width(n - whole) : 0));
  const float scale = c->scale;
  for (int64_t i = 0; i < count; i++) to[i] *= scale;
}

/* C = A B from packed panels, block by block of rows, so that C is gone through once. */
DL_FUNCTION void dl_gemm_thin(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  (void)n0, (void)n1, (void)scratch;
  int rows;
  for (; m0 < m1; m0 += rows) {
    rows = dl_even_rows(m1 - m0, DL_MR);
    dl_gemm_rows(g, 0, g->k, m0, m0 + rows, g->panels, DL_NR, g->k * DL_NR, 1, 0, g->n);
  }
}

/* Few rows of C, and a B whose columns lie in memory as rows (x times a matrix turned): C turned is B turned times A
 * turned. So B is read once, as it lies, and A is what is packed. A tile of the turned product is turned back. */
DL_FUNCTION void dl_gemm_turned(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const dl_target *c = g->c;
  const float scale = c->add ? c->scale : 1.0f;
  float DL_ALIGN made[DL_MR * DL_NR], back[DL_NR * DL_NR];
  int rows;
  const unsigned set = m1 - m0 > DL_LANES ? DL_ROWS_EVEN : ~0u;
  (void)scratch;
  for (; n0 < n1; n0 += rows) {
    rows = dl_rows_there(dl_even_rows(n1 - n0, DL_MR), set);
    const float *panel = g->panels;
    for (int64_t at = m0; at < m1; at += DL_NR) {
      const int64_t count = m1 - at < DL_NR ? m1 - at : DL_NR, width = dl_width(count);
      const dl_steps s = {g->k, g->bn, 1, width, 0, 0, DL_NR, 0};
      if (width > DL_LANES) {
        dl_evens[rows - 1](&s, g->b + n0 * g->bn, panel, 1, made);
      } else {
        dl_even_edge(rows, &s, g->b + n0 * g->bn, panel, made);
      }
      panel += g->k * width;
      if (c->after || c->add) {
        dl_transpose_f32(rows, count, made, DL_NR, back, DL_NR);
        dl_take_tile(c, back, 0, at, count, n0, rows, 0, scale);
      } else {
        dl_transpose_f32(rows, count, made, DL_NR, c->data + at * c->step + n0, c->step);
      }
    }
  }
}

/* C = A B for matrices with any strides. With a function to follow, k <= 1024. `scratch` holds PANELS * NR floats for
 * each step of k, up to 1024; where k * n <= THIN, or k <= SHORT and k * n <= OUTER, all of B in panels; and where
 * m <= TURNED and k * m <= OUTER, all of A in panels. */
#ifndef DL_THIN
#define DL_THIN 8192
#endif
#ifndef DL_SHORT
#define DL_SHORT 64
#endif
#define DL_OUTER 65536
#ifndef DL_TURNED
#define DL_TURNED 32
#endif
#define DL_CACHE 262144 /* numbers that stay in the second cache */
/* Rows of a B that is not packed and too large for the cache, gone through at a time. What all of them have a few
 * columns on must stay in the second cache, where rows a power of two apart have few places. */
#ifndef DL_DIRECT
#define DL_DIRECT 128
#endif
#ifndef DL_FEW
#define DL_FEW 3 /* tiles of rows */
#endif
/* Few rows of C that nothing is added to, and rows of B that are contiguous: B is read where it lies. A B of fewer
 * columns than a vector has lanes is packed. */
DL_INLINE int64_t dl_direct_steps(const dl_gemm *g) {
  return g->k && (g->c->after || g->k * g->n <= DL_CACHE) ? g->k : DL_DIRECT;
}
DL_FUNCTION void dl_gemm_direct(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const int64_t k = g->k, bk = g->bk, at_once = dl_direct_steps(g);
  for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += at_once) {
    const int64_t length = k - k0 < at_once ? k - k0 : at_once;
    const float *from = g->b + k0 * bk + n0;
    if (g->n < DL_LANES) {
      dl_pack_all(length, g->n, from, bk, 1, scratch);
      dl_gemm_rows(g, k0, length, m0, m1, scratch, DL_NR, 0, 1, n0, n1);
    } else {
      dl_gemm_rows(g, k0, length, m0, m1, from, bk, DL_NR, 0, n0, n1);
    }
  }
}

/* Panels of B are packed, a few at a time, and all rows of A go over them. */
DL_INLINE int64_t dl_panel_steps(const dl_gemm *g) { /* what follows sees whole sums, also where KC was tuned */
  return g->c->after ? g->k : DL_KC;
}
DL_FUNCTION void dl_gemm_panels(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const int64_t k = g->k, steps = dl_panel_steps(g);
  for (; n0 < n1; n0 += DL_PANELS * DL_NR) {
    const int64_t end = n1 - n0 < DL_PANELS * DL_NR ? n1 : n0 + DL_PANELS * DL_NR;
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += steps) {
      const int64_t length = k - k0 < steps ? k - k0 : steps;
      dl_pack_scaled(g->c, length, end - n0, g->b + k0 * g->bk + n0 * g->bn, g->bk, g->bn, scratch);
      dl_gemm_rows(g, k0, length, m0, m1, scratch, DL_NR, length * DL_NR, 1, n0, end);
    }
  }
}

/* Which ways a program's products go, as bits (tiles.py). Each can go the last one. */
enum { DL_WAY_TURNED, DL_WAY_THIN, DL_WAY_DIRECT, DL_WAY_PANELS };
#ifndef DL_WAYS
#define DL_WAYS ~0u
#endif
DL_INLINE int dl_way_there(int way) {
  if (DL_WAYS >> way & 1) return way;
  return DL_WAY_PANELS;
}
DL_FUNCTION void dl_gemm_into(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, const float *b,
                              int64_t bk, int64_t bn, const dl_target *c, float *scratch) {
  const _Bool few = m <= DL_FEW * DL_MR; /* rows of C: packing B would cost as much as it saves */
  dl_gemm g = {0, m, n, k, a, am, ak, b, bk, bn, scratch, c, 0, 0, 0};
  /* A tile turned about must fit in one: with one lane it does not. Where many lanes of it were idle, packing a B that
   * a cache holds is quicker, and so it is where sums are so short that turning takes longer. */
  const _Bool idle = 4 * m < 3 * ((m + DL_LANES - 1) / DL_LANES * DL_LANES) && k * n <= DL_CACHE;
  int way = DL_WAY_PANELS;
  if (DL_MR <= DL_NR && bk == 1 && bn != 1 && m <= DL_TURNED && !idle && k > DL_LANES && k * m <= DL_OUTER &&
      n >= DL_MR)
    way = dl_way_there(DL_WAY_TURNED);
  else if ((!few || c->add) && k * n <= (k <= DL_SHORT ? DL_OUTER : DL_THIN))
    way = dl_way_there(DL_WAY_THIN);
  else if (few && bn == 1 && !c->add)
    way = dl_way_there(DL_WAY_DIRECT);
  if (way == DL_WAY_TURNED) {
    dl_pack_all(k, m, a, ak, am, scratch);
    g.part = dl_gemm_turned;
    dl_gemm_run(&g, m, DL_MR * 8, scratch, 0);
  } else if (way == DL_WAY_THIN) {
    dl_pack_scaled(c, k, n, b, bk, bn, scratch);
    g.part = dl_gemm_thin;
    dl_gemm_run(&g, DL_MR * 8, n, scratch, 0);
  } else if (way == DL_WAY_DIRECT) {
    const int64_t steps = dl_direct_steps(&g);
    g.part = dl_gemm_direct;
    dl_gemm_run(&g, m, DL_NR, scratch, (k < steps ? k : steps) * DL_LANES);
  } else {
    const int64_t steps = dl_panel_steps(&g);
    g.part = dl_gemm_panels;
    dl_gemm_run(&g, DL_MR * 8, DL_NR, scratch, (k < steps ? k : steps) * DL_PANELS * DL_NR);
  }
}

DL_FUNCTION void dl_gemm_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, const float *b,
                           int64_t bk, int64_t bn, float *c, float *scratch) {
  const dl_target to = {c, n, 0, 0, 0, 1.0f};
  dl_gemm_into(m, n, k, a, am, ak, b, bk, bn, &to, scratch);
}

/* C += scale * A B: a step of descent by a gradient that never exists. */
DL_FUNCTION void dl_gemm_add_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                               const float *b, int64_t bk, int64_t bn, float *c, float scale, float *scratch) {
  const dl_target to = {c, n, 0, 0, 1, scale};
  dl_gemm_into(m, n, k, a, am, ak, b, bk, bn, &to, scratch);
}

/* The product of two vectors. */
DL_FUNCTION float dl_dot_f32(int64_t k, const float *a, int64_t ak, const float *b, int64_t bk) {
  dl_vf s[4];
  DL_UNROLL for (int v = 0; v < 4; v++) s[v] = (dl_vf){0};
  int64_t i = 0;
  if (ak == 1 && bk == 1) {
    for (; i + 4 * DL_LANES <= k; i += 4 * DL_LANES)
      DL_UNROLL for (int v = 0; v < 4; v++) s[v] += dl_load(a + i + v * DL_LANES) * dl_load(b + i + v * DL_LANES);
    for (; i + DL_LANES <= k; i += DL_LANES) s[0] += dl_load(a + i) * dl_load(b + i);
  }
  const dl_vf t = (s[0] + s[1]) + (s[2] + s[3]);
  float sum = 0.0f;
  for (; i < k; i++) sum += a[i * ak] * b[i * bk];
  for (int l = 0; l < DL_LANES; l++) sum += DL_LANE(t, l);
  return sum;
}

/* A matrix with contiguous rows times a vector. */
DL_FUNCTION void dl_rows_f32(int64_t m, int64_t k, const float *a, int64_t am, const float *b, int64_t bk, float *c) {
  for (int64_t i = 0; i < m; i++) c[i] = dl_dot_f32(k, a + i * am, 1, b, bk);
}
