/* Products of f32 matrices: C[m][n] = sum over k of A[m][k] * B[k][n].
 *
 * One micro-kernel serves dense layers, their gradients and convolutions. It holds a tile of C, `rows` by `vectors`, in
 * registers; each step of k loads `vectors` vectors of a row of B and broadcasts one number from each row of A. So A is
 * read through row pointers with any stride, and along k in segments (the rows of an image under a kernel window): no
 * matrix is ever laid out anew for A. B is read where it lies when a row of it is contiguous and few rows of C need it;
 * otherwise it is packed, NR columns at a time, into panels [k][NR], padded with zeros at the edge.
 */

#if defined(DL_MR) /* as it was tuned: 4, 6 or 12 */
#elif DL_LANES == 16
#define DL_MR 12 /* 32 registers: 24 for the tile, 2 for B */
#elif DL_LANES == 8 || defined(__aarch64__)
#define DL_MR 6
#else
#define DL_MR 4
#endif
#if DL_MR > 8
#define DL_POINTERS 8 /* rows of a tile in a longer row of tiles: more pointers than that do not fit in registers */
#else
#define DL_POINTERS DL_MR
#endif
#define DL_NR (2 * DL_LANES)
#ifndef DL_KC
#define DL_KC 512 /* steps of k a panel: 64 KiB with 16 lanes, in the second cache */
#endif
#ifndef DL_L1_FLOATS
#define DL_L1_FLOATS 6144 /* of a panel that many rows go over, so that it stays in the first cache */
#endif

/* The matrix A. Row m begins at data + (m / row_split) * row_jump + (m % row_split) * row_step; along k there are
 * `segments` of `length` numbers, `step` apart, the segments `jump` apart. */
typedef struct {
  const float *data;
  int64_t row_split, row_jump, row_step;
  int64_t segments, length, jump, step;
} dl_rows;

/* The micro-kernel; `rows`, `vectors` and `near` are constants wherever it is expanded. `near`: the rows of A begin one
 * number apart, so one pointer is enough. It gives C = t, or C + scale * t with `add`. Where B lies in wide rows the
 * same row of the next panel is fetched ahead: it is far in memory from what is read next. */
DL_INLINE void dl_tile(const int rows, const int vectors, const _Bool near, const float *const *a,
                       const dl_rows *shape, const float *b, int64_t b_step, float *c, int64_t c_step, _Bool add,
                       float scale) {
  dl_vf t[DL_MR][2];
  const float *p[DL_MR];
  DL_UNROLL for (int r = 0; r < rows; r++) {
    p[r] = near ? a[0] + r : a[r];
    DL_UNROLL for (int v = 0; v < vectors; v++) t[r][v] = (dl_vf){0};
  }
  const int64_t step = shape->step, length = shape->length, ahead = b_step > DL_NR ? DL_NR : 0;
  for (int64_t s = 0; s < shape->segments; s++) {
    int64_t at = s * shape->jump;
    DL_ROLLED for (int64_t k = 0; k < length; k++, at += step, b += b_step) {
      dl_vf w[2];
      DL_UNROLL for (int v = 0; v < vectors; v++) {
        w[v] = dl_load(b + v * DL_LANES);
        if (ahead) DL_PREFETCH(b + ahead + v * DL_LANES);
      }
      DL_UNROLL for (int r = 0; r < rows; r++) {
        const dl_vf x = p[r][at] - (dl_vf){0};
        DL_UNROLL for (int v = 0; v < vectors; v++) t[r][v] += x * w[v];
      }
    }
  }
  DL_UNROLL for (int r = 0; r < rows; r++) {
    DL_UNROLL for (int v = 0; v < vectors; v++) {
      float *to = c + r * c_step + v * DL_LANES;
      dl_store(to, add ? dl_load(to) + scale * t[r][v] : t[r][v]);
    }
  }
}

#define DL_TILE(NAME, R, V, NEAR)                                                                         \
  DL_FUNCTION void NAME(const float *const *a, const dl_rows *shape, const float *b, int64_t b_step,      \
                        float *c, int64_t c_step, _Bool add, float scale) {                               \
    dl_tile(R, V, NEAR, a, shape, b, b_step, c, c_step, add, scale);                                      \
  }
#define DL_TILES(R) DL_TILE(dl_tile_##R##_1, R, 1, 0) DL_TILE(dl_tile_##R##_2, R, 2, 0)
DL_TILES(1) DL_TILES(2) DL_TILES(3) DL_TILES(4)
#if DL_MR >= 6
DL_TILES(5) DL_TILES(6)
#endif
#if DL_MR >= 12
DL_TILES(7) DL_TILES(8) DL_TILES(9) DL_TILES(10) DL_TILES(11) DL_TILES(12)
#endif
DL_TILE(dl_near_1, DL_MR, 1, 1) DL_TILE(dl_near_2, DL_MR, 2, 1)

typedef void dl_tile_function(const float *const *, const dl_rows *, const float *, int64_t, float *, int64_t, _Bool,
                              float);
#define DL_PAIR(R) {dl_tile_##R##_1, dl_tile_##R##_2}
static dl_tile_function *const dl_tiles[DL_MR + 1][2] __attribute__((unused)) = {
    {dl_near_1, dl_near_2}, DL_PAIR(1), DL_PAIR(2), DL_PAIR(3), DL_PAIR(4),
#if DL_MR >= 6
    DL_PAIR(5), DL_PAIR(6),
#endif
#if DL_MR >= 12
    DL_PAIR(7), DL_PAIR(8), DL_PAIR(9), DL_PAIR(10), DL_PAIR(11), DL_PAIR(12),
#endif
};

/* Where C goes: to memory, rows `step` apart; added to what is there, `scale` times, with `add`; or, tile by tile, to a
 * function that does with it what follows. A tile's rows are NR apart. */
typedef void dl_after(const void *const *context, const float *tile, int64_t m0, int64_t rows, int64_t n0,
                      int64_t columns);
typedef struct {
  float *data;
  int64_t step;
  dl_after *after;
  const void *const *context;
  _Bool add;
  float scale;
} dl_target;

/* Some rows of A, as many as a tile has. */
typedef struct {
  int64_t m0;
  int rows;
  _Bool near;
  const float *p[DL_MR];
} dl_block;

/* The rows from m0 on, of which `left` are left. They are split evenly (5 + 5, not 6 + 4), but whole tiles where these
 * go by one pointer. */
DL_INLINE void dl_rows_from(dl_block *block, const dl_rows *a, int64_t m0, int64_t left) {
  const _Bool near = a->row_step == 1 && left >= DL_MR;
  const int64_t most = left <= DL_MR ? DL_MR : DL_POINTERS, blocks = (left + most - 1) / most;
  const int rows = near ? DL_MR : (int)((left + blocks - 1) / blocks);
  int64_t in_line = m0 % a->row_split;
  const float *line = a->data + m0 / a->row_split * a->row_jump;
  block->m0 = m0;
  block->rows = rows;
  block->near = near && in_line + rows <= a->row_split;
  for (int r = 0; r < rows; r++) {
    block->p[r] = line + in_line * a->row_step;
    if (++in_line == a->row_split) in_line = 0, line += a->row_jump;
  }
}

/* One block of rows times one panel of B, whose first column is n0, `columns` <= NR wide. B must be readable NR wide, or
 * LANES where the columns fit. `more`: this adds to what C has of the terms before. */
DL_INLINE void dl_block_panel(const dl_block *block, const dl_rows *a, const float *b, int64_t b_step, int64_t n0,
                              int64_t columns, const dl_target *c, _Bool more) {
  const int vectors = columns > DL_LANES ? 2 : 1;
  dl_tile_function *const tile = dl_tiles[block->near ? 0 : block->rows][vectors - 1];
  const float scale = c->add ? c->scale : 1.0f;
  const _Bool add = more || c->add;
  float *to = c->data + block->m0 * c->step + n0;
  if (columns == vectors * DL_LANES && !c->after) {
    tile(block->p, a, b, b_step, to, c->step, add, scale);
    return;
  }
  float DL_ALIGN made[DL_MR * DL_NR];
  tile(block->p, a, b, b_step, made, DL_NR, 0, 1.0f);
  if (c->after) {
    c->after(c->context, made, block->m0, block->rows, n0, columns);
    return;
  }
  for (int r = 0; r < block->rows; r++, to += c->step)
    for (int64_t j = 0; j < columns; j++) to[j] = add ? to[j] + scale * made[r * DL_NR + j] : made[r * DL_NR + j];
}

/* Rows m0 to m0 + m of C for one panel. */
DL_FUNCTION void dl_panel(int64_t m0, int64_t m, const dl_rows *a, const float *b, int64_t b_step, int64_t n0,
                          int64_t columns, const dl_target *c, _Bool more) {
  const int64_t end = m0 + m;
  dl_block block;
  for (; m0 < end; m0 += block.rows) {
    dl_rows_from(&block, a, m0, end - m0);
    dl_block_panel(&block, a, b, b_step, n0, columns, c, more);
  }
}

/* Columns of B as a panel [k][width], width NR or LANES, zeros beyond the last column. */
DL_FUNCTION void dl_pack(int64_t k, int64_t columns, int64_t width, const float *b, int64_t bk, int64_t bn,
                         float *to) {
  if (columns < width) memset(to, 0, (size_t)(k * width) * 4);
  if (bk == 1) {
    dl_transpose_f32(columns, k, b, bn, to, width);
  } else if (bn == 1) {
    for (int64_t i = 0; i < k; i++) memcpy(to + i * width, b + i * bk, (size_t)columns * 4);
  } else {
    for (int64_t i = 0; i < k; i++)
      for (int64_t j = 0; j < columns; j++) to[i * width + j] = b[i * bk + j * bn];
  }
}

DL_INLINE int64_t dl_width(int64_t columns) { return columns > DL_LANES ? DL_NR : DL_LANES; }

#define DL_AHEAD 8 /* rows */
/* Columns of B as panels one after the other, each [k][its width]. Whole panels of rows that lie in memory as rows are
 * copied row by row. */
DL_FUNCTION void dl_pack_all(int64_t k, int64_t n, const float *b, int64_t bk, int64_t bn, float *to) {
  int64_t n0 = 0;
  if (bn == 1 && n >= DL_NR) {
    const int64_t whole = n / DL_NR;
    for (int64_t i = 0; i < k; i++)
      for (int64_t j = 0; j < whole; j++)
        for (int64_t v = 0; v < DL_NR; v += DL_LANES) {
          DL_PREFETCH(b + (i + DL_AHEAD) * bk + j * DL_NR + v);
          dl_store(to + (j * k + i) * DL_NR + v, dl_load(b + i * bk + j * DL_NR + v));
        }
    n0 = whole * DL_NR;
    to += k * n0;
  }
  for (; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR;
    dl_pack(k, columns, dl_width(columns), b + n0 * bn, bk, bn, to);
    to += k * dl_width(columns);
  }
}

/* Rows m0 to m0 + m of C from packed panels; A in segments, as many at a time as keep their part of the panel in the
 * first cache. */
DL_FUNCTION void dl_product_packed(int64_t m0, int64_t m, int64_t n, const dl_rows *a, const float *panels, float *c,
                                   _Bool more) {
  const dl_target to = {c, n, 0, 0, 0, 1.0f};
  for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns);
    int64_t at_once = DL_L1_FLOATS / (a->length * width);
    if (at_once < 1) at_once = 1;
    for (int64_t s = 0; s < a->segments; s += at_once) {
      dl_rows part = *a;
      part.data += s * a->jump;
      part.segments = a->segments - s < at_once ? a->segments - s : at_once;
      dl_panel(m0, m, &part, panels, width, n0, columns, &to, more || s > 0);
      panels += part.segments * a->length * width;
    }
  }
}

/* A product of which `part` computes rows m0 to m1 and columns n0 to n1: one chunk of it, or the whole. The columns of a
 * chunk are whole panels, but for the last. */
typedef struct dl_gemm dl_gemm;
typedef void dl_gemm_part(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch);
struct dl_gemm {
  dl_gemm_part *part;
  int64_t m, n, k;
  const dl_rows *rows;
  const float *b;
  int64_t bk, bn;
  const float *panels; /* B, or A where that is packed, if all of it is */
  const dl_target *c;
  int64_t m_span, n_span, across;
};

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

/* C = A B from packed panels, block by block of rows, so that C is gone through once. */
DL_FUNCTION void dl_gemm_thin(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const int64_t n = g->n;
  dl_block block;
  (void)n0, (void)n1, (void)scratch;
  for (; m0 < m1; m0 += block.rows) {
    dl_rows_from(&block, g->rows, m0, m1 - m0);
    const float *b = g->panels;
    for (int64_t at = 0; at < n; at += DL_NR) {
      const int64_t columns = n - at < DL_NR ? n - at : DL_NR, width = dl_width(columns);
      dl_block_panel(&block, g->rows, b, width, at, columns, g->c, 0);
      b += g->k * width;
    }
  }
}

/* Few rows of C, and a B whose columns lie in memory as rows (x times a matrix turned): C turned is B turned times A
 * turned. So B is read once, as it lies, and A is what is packed. A tile of the turned product is turned back. */
DL_FUNCTION void dl_gemm_turned(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const dl_target *c = g->c;
  float DL_ALIGN made[DL_MR * DL_NR], back[DL_NR * DL_NR];
  dl_block block;
  (void)scratch;
  for (; n0 < n1; n0 += block.rows) {
    dl_rows_from(&block, g->rows, n0, n1 - n0);
    const float *panel = g->panels;
    for (int64_t at = m0; at < m1; at += DL_NR) {
      const int64_t count = m1 - at < DL_NR ? m1 - at : DL_NR, width = dl_width(count);
      dl_tiles[block.rows][width / DL_LANES - 1](block.p, g->rows, panel, width, made, DL_NR, 0, 1.0f);
      panel += g->k * width;
      if (c->after) {
        dl_transpose_f32(block.rows, count, made, DL_NR, back, DL_NR);
        c->after(c->context, back, at, count, n0, block.rows);
      } else if (c->add) {
        for (int64_t i = 0; i < count; i++)
          for (int r = 0; r < block.rows; r++) c->data[(at + i) * c->step + n0 + r] += c->scale * made[r * DL_NR + i];
      } else {
        dl_transpose_f32(block.rows, count, made, DL_NR, c->data + at * c->step + n0, c->step);
      }
    }
  }
}

/* C = A B for matrices with any strides. With a function to follow, k <= KC. `scratch` holds PANELS * KC * NR floats;
 * where k * n <= THIN, or k <= SHORT and k * n <= OUTER, all of B in panels; and where m <= TURNED and k * m <= OUTER,
 * all of A in panels. */
#ifndef DL_THIN
#define DL_THIN 8192
#endif
#define DL_PANELS 4
#ifndef DL_SHORT
#define DL_SHORT 64
#endif
#define DL_OUTER 65536
#ifndef DL_TURNED
#define DL_TURNED 32
#endif
#define DL_CACHE 262144 /* numbers that stay in the second cache */
/* Rows of a B that is not packed and too large for the cache, gone through at a time: no more than there are pages that
 * the processor knows of at once, since each may lie in one of its own. */
#ifndef DL_DIRECT
#define DL_DIRECT 32
#endif
#ifndef DL_FEW
#define DL_FEW 3 /* tiles of rows */
#endif
/* Few rows of C, and rows of B that are contiguous: B is read where it lies. */
DL_INLINE int64_t dl_direct_steps(const dl_gemm *g) {
  return g->k && (g->c->after || g->k * g->n <= DL_CACHE) ? g->k : DL_DIRECT;
}
DL_FUNCTION void dl_gemm_direct(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const int64_t k = g->k, bk = g->bk, at_once = dl_direct_steps(g), ak = g->rows->step;
  const int64_t all = g->n / DL_LANES * DL_LANES, whole = n1 < all ? n1 : all;
  for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += at_once) {
    dl_rows part = *g->rows;
    part.data += k0 * ak;
    part.length = k - k0 < at_once ? k - k0 : at_once;
    const float *from = g->b + k0 * bk;
    for (int64_t at = n0; at < whole; at += DL_NR) {
      const int64_t columns = whole - at < DL_NR ? whole - at : DL_NR;
      dl_panel(m0, m1 - m0, &part, from + at, bk, at, columns, g->c, k0 > 0);
    }
    if (whole < n1) {
      dl_pack(part.length, n1 - whole, DL_LANES, from + whole, bk, 1, scratch);
      dl_panel(m0, m1 - m0, &part, scratch, DL_LANES, whole, n1 - whole, g->c, k0 > 0);
    }
  }
}

/* Panels of B are packed, a few at a time, and all rows of A go over them. */
DL_INLINE int64_t dl_panel_steps(const dl_gemm *g) { /* what follows sees whole sums, also where KC was tuned */
  return g->c->after ? g->k : DL_KC;
}
DL_FUNCTION void dl_gemm_panels(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch) {
  const int64_t k = g->k, steps = dl_panel_steps(g), ak = g->rows->step;
  for (; n0 < n1; n0 += DL_PANELS * DL_NR) {
    const int64_t end = n1 - n0 < DL_PANELS * DL_NR ? n1 : n0 + DL_PANELS * DL_NR;
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += steps) {
      dl_rows part = *g->rows;
      part.data += k0 * ak;
      part.length = k - k0 < steps ? k - k0 : steps;
      dl_pack_all(part.length, end - n0, g->b + k0 * g->bk + n0 * g->bn, g->bk, g->bn, scratch);
      const float *panel = scratch;
      for (int64_t at = n0; at < end; at += DL_NR) {
        const int64_t columns = end - at < DL_NR ? end - at : DL_NR, width = dl_width(columns);
        dl_panel(m0, m1 - m0, &part, panel, width, at, columns, g->c, k0 > 0);
        panel += part.length * width;
      }
    }
  }
}

DL_FUNCTION void dl_gemm_into(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, const float *b,
                              int64_t bk, int64_t bn, const dl_target *c, float *scratch) {
  const dl_rows rows = {a, m, 0, am, 1, k, 0, ak}, turned = {b, n, 0, bn, 1, k, 0, 1};
  const _Bool few = m <= DL_FEW * DL_MR; /* rows of C: packing B would cost as much as it saves */
  dl_gemm g = {0, m, n, k, &rows, b, bk, bn, scratch, c, 0, 0, 0};
  /* A tile turned about must fit in one: with one lane it does not. */
  if (DL_MR <= DL_NR && bk == 1 && bn != 1 && m <= DL_TURNED && k * m <= DL_OUTER && n >= DL_MR) {
    dl_pack_all(k, m, a, ak, am, scratch);
    g.rows = &turned;
    g.part = dl_gemm_turned;
    dl_gemm_run(&g, m, DL_MR * DL_POINTERS, scratch, 0);
  } else if (!few && k * n <= (k <= DL_SHORT ? DL_OUTER : DL_THIN)) {
    dl_pack_all(k, n, b, bk, bn, scratch);
    g.part = dl_gemm_thin;
    dl_gemm_run(&g, DL_MR * DL_POINTERS, n, scratch, 0);
  } else if (few && bn == 1) {
    const int64_t steps = dl_direct_steps(&g);
    g.part = dl_gemm_direct;
    dl_gemm_run(&g, m, DL_NR, scratch, (k < steps ? k : steps) * DL_LANES);
  } else {
    const int64_t steps = dl_panel_steps(&g);
    g.part = dl_gemm_panels;
    dl_gemm_run(&g, DL_MR * DL_POINTERS, DL_NR, scratch, (k < steps ? k : steps) * DL_PANELS * DL_NR);
  }
}

DL_INLINE void dl_gemm_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, const float *b,
                           int64_t bk, int64_t bn, float *c, float *scratch) {
  const dl_target to = {c, n, 0, 0, 0, 1.0f};
  dl_gemm_into(m, n, k, a, am, ak, b, bk, bn, &to, scratch);
}

/* C += scale * A B: a step of descent by a gradient that never exists. */
DL_INLINE void dl_gemm_add_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
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
