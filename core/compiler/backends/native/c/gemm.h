/* The tile of products of f32 matrices, C[m][n] = sum over k of A[m][k] * B[k][n], and how B is packed.
 *
 * The micro-kernel serves convolutions; dense.h has its twin for matrices whose rows are all one distance apart. It holds
 * a tile of C, `rows` by `vectors`, in registers; each step of k loads `vectors` vectors of a row of B and broadcasts one
 * number from each row of A. So A is read through row pointers with any stride, and along k in segments (the rows of an
 * image under a kernel window): no matrix is ever laid out anew for A. B is packed, NR columns at a time, into panels
 * [k][NR]; what is beyond the edge there is never looked at.
 *
 * Bounds: row m < m0 + m of A lies within A because m / row_split and m % row_split count rows and places in one; along k,
 * s < segments and l < length give (segments - 1) jump + (length - 1) step at most. A panel of B holds k * width floats,
 * width = LANES or NR >= columns; of a B that is not packed the caller says that NR columns (or LANES) can be read. Rows
 * are stored `columns` wide. A division is by length * width only where length > 0; row_split, MR, NR >= 1. Every product
 * is at most the elements of A, B, C or scratch: tensors have <= 2^40, scratch is below the limit that the verifier and
 * `verify_arena` set.
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
#define DL_POINTERS 8 /* rows of a tile that has a pointer for each: more pointers do not fit in registers */
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

/* Keeps one multiply-add that waits for the last from becoming two operations, which is what GCC makes of a tile of one
 * row and one vector: it would be rounded otherwise than in larger tiles. */
#if !defined(__GNUC__) || defined(__clang__) || !defined(__x86_64__) || defined(DL_PORTABLE)
#define DL_CHAINED(t) ((void)0)
#elif (DL_LANES > 8 && !defined(__AVX512F__)) || (DL_LANES > 4 && !defined(__AVX__))
#define DL_CHAINED(t) __asm__("" : "+m"(t)) /* tuned to more lanes than a register has */
#else
#define DL_CHAINED(t) __asm__("" : "+x"(t))
#endif

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
      if (rows * vectors == 1) DL_CHAINED(t[0][0]);
    }
  }
  DL_UNROLL for (int r = 0; r < rows; r++) {
    DL_UNROLL for (int v = 0; v < vectors; v++) {
      float *to = c + r * c_step + v * DL_LANES;
      dl_store(to, add ? dl_load(to) + scale * t[r][v] : t[r][v]);
    }
  }
}

/* Which numbers of rows a program has a tile for, as bits (tiles.py), of two vectors and of one; 0 is `near`. Of one row
 * there always is one: where another is missed, rows go one by one. */
#if DL_MR != 12 || DL_LANES != 16 || !defined(__AVX512F__)
#undef DL_ROWS_WIDE
#undef DL_ROWS_EVEN
#undef DL_WAYS
#endif
#ifndef DL_ROWS_WIDE
#undef DL_ROWS_NARROW
#define DL_ROWS_WIDE ~0u
#define DL_ROWS_NARROW ~0u
#define DL_IF(SET, R, F) F
#else
#define DL_IF(SET, R, F) ((SET) >> (R) & 1 ? F : 0)
#endif
DL_INLINE int dl_rows_there(int rows, unsigned set) {
  if (set >> rows & 1) return rows;
  return 1;
}
#define DL_TILE(NAME, R, V, NEAR)                                                                         \
  DL_FUNCTION void NAME(const float *const *a, const dl_rows *shape, const float *b, int64_t b_step,      \
                        float *c, int64_t c_step, _Bool add, float scale) {                               \
    dl_tile(R, V, NEAR, a, shape, b, b_step, c, c_step, add, scale);                                      \
  }
#define DL_TILES(R) DL_TILE(dl_tile_##R##_1, R, 1, 0) DL_TILE(dl_tile_##R##_2, R, 2, 0)
DL_TILE(dl_near_1, DL_MR, 1, 1) DL_TILE(dl_near_2, DL_MR, 2, 1)
DL_TILES(1) DL_TILES(2) DL_TILES(3) DL_TILES(4)
#if DL_MR >= 6
DL_TILES(5) DL_TILES(6)
#endif
#if DL_POINTERS >= 8
DL_TILES(7) DL_TILES(8)
#endif

typedef void dl_tile_function(const float *const *, const dl_rows *, const float *, int64_t, float *, int64_t, _Bool,
                              float);
#define DL_PAIR(R) {DL_IF(DL_ROWS_NARROW, R, dl_tile_##R##_1), DL_IF(DL_ROWS_WIDE, R, dl_tile_##R##_2)}
static dl_tile_function *const dl_tiles[DL_POINTERS + 1][2] __attribute__((unused)) = {
    {DL_IF(DL_ROWS_NARROW, 0, dl_near_1), DL_IF(DL_ROWS_WIDE, 0, dl_near_2)},
    {dl_tile_1_1, dl_tile_1_2}, DL_PAIR(2), DL_PAIR(3), DL_PAIR(4),
#if DL_MR >= 6
    DL_PAIR(5), DL_PAIR(6),
#endif
#if DL_POINTERS >= 8
    DL_PAIR(7), DL_PAIR(8),
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

/* The rows of the next block, at most so many: they are split evenly (5 + 5, not 6 + 4). */
DL_INLINE int dl_even_rows(int64_t left, int64_t most) {
  const int64_t blocks = (left + most - 1) / most;
  return (int)((left + blocks - 1) / blocks);
}

/* The rows from m0 on, of which `left` are left: a whole tile of MR where it goes by one pointer. */
DL_INLINE void dl_rows_from(dl_block *block, const dl_rows *a, int64_t m0, int64_t left, unsigned set) {
  int64_t in_line = m0 % a->row_split;
  const _Bool near = a->row_step == 1 && left >= DL_MR && in_line + DL_MR <= a->row_split && (set & 1);
  const int rows = near ? DL_MR : dl_rows_there(dl_even_rows(left, DL_POINTERS), set);
  const float *line = a->data + m0 / a->row_split * a->row_jump;
  block->m0 = m0;
  block->rows = rows;
  block->near = near;
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
  const unsigned set = columns > DL_LANES ? DL_ROWS_WIDE : DL_ROWS_NARROW;
  dl_block block;
  for (; m0 < end; m0 += block.rows) {
    dl_rows_from(&block, a, m0, end - m0, set);
    dl_block_panel(&block, a, b, b_step, n0, columns, c, more);
  }
}

/* Columns of B as a panel [k][width], width NR or LANES, and any numbers beyond the last column. */
DL_FUNCTION void dl_pack(int64_t k, int64_t columns, int64_t width, const float *b, int64_t bk, int64_t bn,
                         float *to) {
  int64_t i = 0;
  /* Rows that are not the last ones are read beyond their end, which is quicker; nothing reads what that gives. */
  for (; bn == 1 && i < k && (k - 1 - i) * bk + columns >= width; i++)
    for (int64_t v = 0; v < width; v += DL_LANES) dl_store(to + i * width + v, dl_load(b + i * bk + v));
  if (columns < width) memset(to + i * width, 0, (size_t)((k - i) * width) * 4);
  if (bk == 1) {
    dl_transpose_f32(columns, k, b, bn, to, width);
  } else if (bn == 1) {
    for (; i < k; i++) memcpy(to + i * width, b + i * bk, (size_t)columns * 4);
  } else {
    for (; i < k; i++)
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

/* Rows m0 to m0 + m of C from B in panels, or as it lies; A in segments, as many at a time as keep their part of the
 * panel in the first cache. */
DL_FUNCTION void dl_product_panels(int64_t m0, int64_t m, int64_t n, const dl_rows *a, const float *b, _Bool packed,
                                   float *c, _Bool more) {
  const dl_target to = {c, n, 0, 0, 0, 1.0f};
  for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns), step = packed ? width : n;
    const float *panel = packed ? b + a->segments * a->length * n0 : b + n0;
    int64_t at_once = a->length ? DL_L1_FLOATS / (a->length * width) : a->segments;
    if (at_once < 1) at_once = 1;
    for (int64_t s = 0; s < a->segments; s += at_once) {
      dl_rows part = *a;
      part.data += s * a->jump;
      part.segments = a->segments - s < at_once ? a->segments - s : at_once;
      dl_panel(m0, m, &part, panel, step, n0, columns, &to, more || s > 0);
      panel += part.segments * a->length * step;
    }
  }
}
