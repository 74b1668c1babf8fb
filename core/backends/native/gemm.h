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

/* The micro-kernel; `rows` and `vectors` are constants wherever it is expanded. */
DL_INLINE void dl_tile(const int rows, const int vectors, const float *const *a, const dl_rows *shape, const float *b,
                       int64_t b_step, float *c, int64_t c_step, _Bool add) {
  dl_vf t[DL_MR][2];
  const float *p[DL_MR];
  DL_UNROLL for (int r = 0; r < rows; r++) {
    p[r] = a[r];
    DL_UNROLL for (int v = 0; v < vectors; v++) t[r][v] = (dl_vf){0};
  }
  const int64_t step = shape->step, length = shape->length;
  for (int64_t s = 0; s < shape->segments; s++) {
    int64_t at = s * shape->jump;
    DL_ROLLED for (int64_t k = 0; k < length; k++, at += step, b += b_step) {
      dl_vf w[2];
      DL_UNROLL for (int v = 0; v < vectors; v++) w[v] = dl_load(b + v * DL_LANES);
      DL_UNROLL for (int r = 0; r < rows; r++) {
        const dl_vf x = p[r][at] - (dl_vf){0};
        DL_UNROLL for (int v = 0; v < vectors; v++) t[r][v] += x * w[v];
      }
    }
  }
  DL_UNROLL for (int r = 0; r < rows; r++) {
    DL_UNROLL for (int v = 0; v < vectors; v++) {
      float *to = c + r * c_step + v * DL_LANES;
      dl_store(to, add ? dl_load(to) + t[r][v] : t[r][v]);
    }
  }
}

#define DL_TILE(R, V)                                                                                      \
  DL_FUNCTION void dl_tile_##R##_##V(const float *const *a, const dl_rows *shape, const float *b,          \
                                     int64_t b_step, float *c, int64_t c_step, _Bool add) {                \
    dl_tile(R, V, a, shape, b, b_step, c, c_step, add);                                                    \
  }
#define DL_TILES(R) DL_TILE(R, 1) DL_TILE(R, 2)
DL_TILES(1) DL_TILES(2) DL_TILES(3) DL_TILES(4)
#if DL_MR >= 6
DL_TILES(5) DL_TILES(6)
#endif
#if DL_MR >= 12
DL_TILES(7) DL_TILES(8) DL_TILES(9) DL_TILES(10) DL_TILES(11) DL_TILES(12)
#endif

typedef void dl_tile_function(const float *const *, const dl_rows *, const float *, int64_t, float *, int64_t, _Bool);
#define DL_PAIR(R) {dl_tile_##R##_1, dl_tile_##R##_2}
static dl_tile_function *const dl_tiles[DL_MR + 1][2] __attribute__((unused)) = {
    {0, 0}, DL_PAIR(1), DL_PAIR(2), DL_PAIR(3), DL_PAIR(4),
#if DL_MR >= 6
    DL_PAIR(5), DL_PAIR(6),
#endif
#if DL_MR >= 12
    DL_PAIR(7), DL_PAIR(8), DL_PAIR(9), DL_PAIR(10), DL_PAIR(11), DL_PAIR(12),
#endif
};

/* Where C goes: to memory, rows `step` apart; or, tile by tile, to a function that does with it what follows. */
typedef void dl_after(const void *const *context, const float *tile, int64_t m0, int64_t rows, int64_t n0,
                      int64_t columns);
typedef struct {
  float *data;
  int64_t step;
  dl_after *after;
  const void *const *context;
} dl_target;

/* Rows m0 to m0 + m of C for the panel of B whose first column is n0, `columns` <= NR wide. B must be readable NR wide,
 * or LANES where the columns fit. */
DL_FUNCTION void dl_panel(int64_t m0, int64_t m, const dl_rows *a, const float *b, int64_t b_step, int64_t n0,
                          int64_t columns, const dl_target *c, _Bool add) {
  const int vectors = columns > DL_LANES ? 2 : 1;
  const _Bool direct = columns == vectors * DL_LANES && !c->after;
  const int64_t blocks = (m + DL_MR - 1) / DL_MR, end = m0 + m;
  int64_t in_line = m0 % a->row_split; /* the place of row m0 among those of its line, whose first row begins here: */
  const float *line = a->data + m0 / a->row_split * a->row_jump;
  for (int64_t block = 0; block < blocks; block++) { /* rows split evenly: 5 + 5, not 6 + 4 */
    const int rows = (int)((end - m0 + blocks - block - 1) / (blocks - block));
    const float *p[DL_MR];
    for (int r = 0; r < rows; r++) {
      p[r] = line + in_line * a->row_step;
      if (++in_line == a->row_split) in_line = 0, line += a->row_jump;
    }
    if (direct) {
      dl_tiles[rows][vectors - 1](p, a, b, b_step, c->data + m0 * c->step + n0, c->step, add);
    } else {
      float DL_ALIGN tile[DL_MR * DL_NR];
      dl_tiles[rows][vectors - 1](p, a, b, b_step, tile, DL_NR, 0);
      if (c->after) {
        c->after(c->context, tile, m0, rows, n0, columns);
      } else {
        for (int r = 0; r < rows; r++) {
          float *to = c->data + (m0 + r) * c->step + n0;
          for (int64_t j = 0; j < columns; j++) to[j] = tile[r * DL_NR + j] + (add ? to[j] : 0.0f);
        }
      }
    }
    m0 += rows;
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

/* The whole of B as panels one after the other, each [k][its width]. */
DL_FUNCTION void dl_pack_all(int64_t k, int64_t n, const float *b, int64_t bk, int64_t bn, float *to) {
  for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR;
    dl_pack(k, columns, dl_width(columns), b + n0 * bn, bk, bn, to);
    to += k * dl_width(columns);
  }
}

/* C from packed panels; A in segments, as many at a time as keep their part of the panel in the first cache. */
DL_FUNCTION void dl_product_packed(int64_t m, int64_t n, const dl_rows *a, const float *panels, float *c, _Bool add) {
  const dl_target to = {c, n, 0, 0};
  for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns);
    int64_t at_once = DL_L1_FLOATS / (a->length * width);
    if (at_once < 1) at_once = 1;
    for (int64_t s = 0; s < a->segments; s += at_once) {
      dl_rows part = *a;
      part.data += s * a->jump;
      part.segments = a->segments - s < at_once ? a->segments - s : at_once;
      dl_panel(0, m, &part, panels, width, n0, columns, &to, add || s > 0);
      panels += part.segments * a->length * width;
    }
  }
}

/* C = A B where B is small enough for the first cache: block by block of rows, so that C is gone through once. */
DL_FUNCTION void dl_gemm_thin(int64_t m, int64_t n, const dl_rows *a, const float *panels, const dl_target *c) {
  for (int64_t m0 = 0; m0 < m; m0 += DL_MR) {
    const int64_t rows = m - m0 < DL_MR ? m - m0 : DL_MR;
    const float *b = panels;
    for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
      const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns);
      dl_panel(m0, rows, a, b, width, n0, columns, c, 0);
      b += a->length * width;
    }
  }
}

/* C = A B for matrices with any strides, C contiguous. `scratch` holds KC * NR floats, or all of B padded to panels
 * where B is thin: k * n <= DL_THIN. With a function to follow, k <= KC. */
#ifndef DL_FEW
#define DL_FEW 2
#endif
#ifndef DL_THIN
#define DL_THIN 8192
#endif
DL_FUNCTION void dl_gemm_into(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, const float *b,
                              int64_t bk, int64_t bn, const dl_target *c, float *scratch) {
  const dl_rows rows = {a, m, 0, am, 1, k, 0, ak};
  const _Bool few = m <= DL_FEW * DL_MR; /* rows of C: packing B would cost as much as it saves */
  if (!few && k * n <= DL_THIN) {
    dl_pack_all(k, n, b, bk, bn, scratch);
    dl_gemm_thin(m, n, &rows, scratch, c);
    return;
  }
  for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns);
    if (few && bn == 1 && columns == width) {
      dl_panel(0, m, &rows, b + n0, bk, n0, columns, c, 0);
      continue;
    }
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += DL_KC) {
      dl_rows part = rows;
      part.data += k0 * ak;
      part.length = k - k0 < DL_KC ? k - k0 : DL_KC;
      dl_pack(part.length, columns, width, b + k0 * bk + n0 * bn, bk, bn, scratch);
      dl_panel(0, m, &part, scratch, width, n0, columns, c, k0 > 0);
    }
  }
}

DL_INLINE void dl_gemm_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak, const float *b,
                           int64_t bk, int64_t bn, float *c, float *scratch) {
  const dl_target to = {c, n, 0, 0};
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
