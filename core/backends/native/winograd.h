/* Convolutions with few multiplications: of 3x3 kernels a quarter of them, of 5x5 kernels 36 of 100.
 *
 * Minimal filtering over tiles of 6x6 pixels (Lavin and Gray 2016, "Fast algorithms for convolutional neural networks",
 * equation 12, with Toom and Cook's points 0, 5/8, -5/8, 3/2, -3/2 and infinity). m = 7 - r output pixels a side come of
 * one tile, r being the kernel's side: 4 for 3x3, 2 for 5x5. An image becomes tiles, each tile and channel 36 numbers
 * (B'dB), the kernel 36 matrices (GgG'); what was a sum over places and channels is one product of matrices for each
 * of the 36 places; and the products become pixels (A'MA).
 *
 * The gradient by the input is the same with the kernel turned about. That by the kernel is the transpose: y's tiles of
 * m x m become 36 numbers (AyA'), each place's product sums over tiles, and 36 matrices become the kernel (G'MG).
 *
 * Errors are relative to the largest numbers of a tile and not of a window, and some five times those of plain sums: with
 * the usual points 1 and 2 they are eleven times, as powers of what is far from 1 differ more in size.
 * Channels are multiples of LANES. All tiles of some strips (rows of tiles of an image) make a block: the products of a
 * block stay in the second cache. Blocks depend on sizes alone, so results do not depend on threads.
 */
#define DL_PLACES 36
#define DL_BLOCK_FLOATS 4096 /* of a place of a block, of both sides of a product */
#define DL_BLOCK_TILES 32    /* a block has more only where it has few channels */
#define DL_PLACE_PAD 16      /* places lie no power of two apart: a tile is written to all of them */

/* How the images of a convolution fall into tiles, strips and blocks. Where tiles stick out of an image by more than its
 * padding, all images can be one high one with zeros between them: fewer tiles. A tile then is of two images, which is
 * nothing to a sum over images, but would let one image's numbers round another's. */
typedef struct {
  int64_t images, period;  /* images, or one; rows from one image to the next in that one, or 0 */
  int64_t m, down, across; /* a tile's output pixels a side; tiles of an image */
  int64_t rows, strips;    /* rows of tiles of a strip; strips of an image */
  int64_t together, blocks, tiles; /* strips of a block, blocks, the most tiles of a block */
} dl_tiling;

DL_INLINE dl_tiling dl_tiling_of(const dl_conv *d, _Bool summed) {
  dl_tiling a = {d->n, 0};
  a.m = 7 - d->kh;
  a.down = (d->oh + a.m - 1) / a.m;
  const int64_t one = a.down, below = d->oh + d->kh - 1 - d->top - d->h, edge = d->top > below ? d->top : below;
  const int64_t period = d->oh > d->h + edge ? d->oh : d->h + edge;
  const int64_t high = ((d->n - 1) * period + d->oh + a.m - 1) / a.m;
  if (summed && d->n > 1 && high < d->n * one) a.images = 1, a.period = period, a.down = high;
  a.across = (d->ow + a.m - 1) / a.m;
  int64_t most = DL_BLOCK_FLOATS / (d->c + d->o);
  if (most < DL_BLOCK_TILES) most = DL_BLOCK_TILES;
  a.rows = most / a.across < 1 ? 1 : most / a.across < one ? most / a.across : one;
  a.strips = (a.down + a.rows - 1) / a.rows;
  a.rows = (a.down + a.strips - 1) / a.strips;
  const int64_t all = a.images * a.strips, fit = most / (a.rows * a.across) < 1 ? 1 : most / (a.rows * a.across);
  a.blocks = (all + fit - 1) / fit;
  a.together = a.blocks ? (all + a.blocks - 1) / a.blocks : 0;
  a.tiles = a.together * a.rows * a.across;
  return a;
}

/* The points, whose squares and their product are exact, and what a kernel is divided by at each. */
#define DL_NEAR 0.625f
#define DL_FAR 1.5f
#define DL_NEAR2 (DL_NEAR * DL_NEAR)
#define DL_FAR2 (DL_FAR * DL_FAR)
#define DL_AT_NEAR (0.5f / (DL_NEAR2 * (DL_NEAR2 - DL_FAR2)))
#define DL_AT_FAR (0.5f / (DL_FAR2 * (DL_FAR2 - DL_NEAR2)))
#define DL_AT_ZERO (1 / (DL_NEAR2 * DL_FAR2))

/* Six numbers of a tile. */
DL_INLINE void dl_wino_input(const dl_vf *d, int step, dl_vf *to, int to_step) {
  const dl_vf a = d[4 * step] - DL_FAR2 * d[2 * step], b = d[3 * step] - DL_FAR2 * d[step];
  const dl_vf c = d[4 * step] - DL_NEAR2 * d[2 * step], e = d[3 * step] - DL_NEAR2 * d[step];
  to[0] = d[4 * step] + (DL_NEAR2 * DL_FAR2 * d[0] - (DL_NEAR2 + DL_FAR2) * d[2 * step]);
  to[to_step] = a + DL_NEAR * b;
  to[2 * to_step] = a - DL_NEAR * b;
  to[3 * to_step] = c + DL_FAR * e;
  to[4 * to_step] = c - DL_FAR * e;
  to[5 * to_step] = d[5 * step] + (DL_NEAR2 * DL_FAR2 * d[step] - (DL_NEAR2 + DL_FAR2) * d[3 * step]);
}

/* M numbers of y as six. */
DL_INLINE void dl_wino_spread(const int M, const dl_vf *y, int step, dl_vf *to, int to_step) {
  dl_vf even = y[0], odd = y[step], even2 = y[0], odd2 = y[step];
  if (M > 2) {
    even += DL_NEAR2 * y[2 * step], odd += DL_NEAR2 * y[3 * step];
    even2 += DL_FAR2 * y[2 * step], odd2 += DL_FAR2 * y[3 * step];
  }
  to[0] = y[0];
  to[to_step] = even + DL_NEAR * odd;
  to[2 * to_step] = even - DL_NEAR * odd;
  to[3 * to_step] = even2 + DL_FAR * odd2;
  to[4 * to_step] = even2 - DL_FAR * odd2;
  to[5 * to_step] = y[(M - 1) * step];
}

/* Six products as M pixels. */
DL_INLINE void dl_wino_output(const int M, const dl_vf *p, int step, dl_vf *to, int to_step) {
  const dl_vf a = p[step] + p[2 * step], b = DL_NEAR * (p[step] - p[2 * step]);
  const dl_vf c = p[3 * step] + p[4 * step], e = DL_FAR * (p[3 * step] - p[4 * step]);
  to[0] = p[0] + (a + c);
  if (M > 2) {
    to[to_step] = b + e;
    to[2 * to_step] = DL_NEAR2 * a + DL_FAR2 * c;
    to[3 * to_step] = DL_NEAR2 * b + DL_FAR2 * e + p[5 * step];
  } else {
    to[to_step] = b + e + p[5 * step];
  }
}

/* R numbers of a kernel as six. */
DL_INLINE void dl_wino_kernel(const int R, const dl_vf *g, int step, dl_vf *to, int to_step) {
  dl_vf even = g[0] + DL_NEAR2 * g[2 * step], odd = g[step];
  dl_vf even2 = g[0] + DL_FAR2 * g[2 * step], odd2 = g[step];
  if (R == 5) {
    even += DL_NEAR2 * DL_NEAR2 * g[4 * step], even2 += DL_FAR2 * DL_FAR2 * g[4 * step];
    odd += DL_NEAR2 * g[3 * step], odd2 += DL_FAR2 * g[3 * step];
  }
  to[0] = DL_AT_ZERO * g[0];
  to[to_step] = DL_AT_NEAR * (even + DL_NEAR * odd);
  to[2 * to_step] = DL_AT_NEAR * (even - DL_NEAR * odd);
  to[3 * to_step] = DL_AT_FAR * (even2 + DL_FAR * odd2);
  to[4 * to_step] = DL_AT_FAR * (even2 - DL_FAR * odd2);
  to[5 * to_step] = g[(R - 1) * step];
}

/* Six sums as R numbers of a kernel. */
DL_INLINE void dl_wino_gather(const int R, const dl_vf *u, int step, dl_vf *to, int to_step) {
  const dl_vf a = DL_AT_NEAR * (u[step] + u[2 * step]), b = DL_AT_NEAR * DL_NEAR * (u[step] - u[2 * step]);
  const dl_vf c = DL_AT_FAR * (u[3 * step] + u[4 * step]), e = DL_AT_FAR * DL_FAR * (u[3 * step] - u[4 * step]);
  to[0] = DL_AT_ZERO * u[0] + (a + c);
  to[to_step] = b + e;
  to[2 * to_step] = DL_NEAR2 * a + DL_FAR2 * c;
  if (R == 5) {
    to[3 * to_step] = DL_NEAR2 * b + DL_FAR2 * e;
    to[4 * to_step] = DL_NEAR2 * DL_NEAR2 * a + DL_FAR2 * DL_FAR2 * c;
  }
  to[(R - 1) * to_step] += u[5 * step];
}

/* One tile of a frame, of all channels; a place's numbers of this tile are `apart` from the next place's. */
DL_FUNCTION void dl_wino_tile(const float *x, int64_t width, int64_t c, float *to, int64_t apart) {
  for (int64_t at = 0; at < c; at += DL_LANES) {
    dl_vf half[36], made[6];
    DL_ROLLED for (int i = 0; i < 6; i++) {
      dl_vf line[6];
      DL_UNROLL for (int j = 0; j < 6; j++) line[j] = dl_load(x + (i * width + j) * c + at);
      dl_wino_input(line, 1, half + 6 * i, 1);
    }
    DL_ROLLED for (int j = 0; j < 6; j++) {
      dl_wino_input(half + j, 6, made, 1);
      DL_UNROLL for (int i = 0; i < 6; i++) dl_store(to + (6 * i + j) * apart + at, made[i]);
    }
  }
}

/* One tile of a frame of y. */
DL_INLINE void dl_wino_y_tile(const int M, const float *y, int64_t width, int64_t c, float *to, int64_t apart) {
  for (int64_t at = 0; at < c; at += DL_LANES) {
    dl_vf half[24], made[6];
    DL_ROLLED for (int i = 0; i < M; i++) {
      dl_vf line[4];
      DL_UNROLL for (int j = 0; j < M; j++) line[j] = dl_load(y + (i * width + j) * c + at);
      dl_wino_spread(M, line, 1, half + 6 * i, 1);
    }
    DL_ROLLED for (int j = 0; j < 6; j++) {
      dl_wino_spread(M, half + j, 6, made, 1);
      DL_UNROLL for (int i = 0; i < 6; i++) dl_store(to + (6 * i + j) * apart + at, made[i]);
    }
  }
}

/* Pixels of one tile: of `rows` x `columns` of them there is an image. */
DL_INLINE void dl_wino_pixels(const int M, const float *p, int64_t apart, int64_t o, float *y, int64_t width,
                              int64_t rows, int64_t columns) {
  for (int64_t at = 0; at < o; at += DL_LANES) {
    dl_vf half[24], made[4];
    DL_ROLLED for (int i = 0; i < 6; i++) {
      dl_vf line[6];
      DL_UNROLL for (int j = 0; j < 6; j++) line[j] = dl_load(p + (6 * i + j) * apart + at);
      dl_wino_output(M, line, 1, half + M * i, 1);
    }
    DL_ROLLED for (int j = 0; j < M && j < columns; j++) {
      dl_wino_output(M, half + j, M, made, 1);
      DL_UNROLL for (int i = 0; i < M; i++)
        if (i < rows) dl_store(y + (i * width + j) * o + at, made[i]);
    }
  }
}

/* Floats from one place's matrix to the next's. */
DL_INLINE int64_t dl_wino_apart(const dl_conv *d) { return d->c * d->o + DL_PLACE_PAD; }

/* The matrices of a kernel [R][R][c][o], turned about if so wished, in panels as a product reads them. */
DL_INLINE void dl_wino_matrices(const int R, int64_t c, int64_t o, const float *k, _Bool turned, float *to) {
  const int64_t first = turned ? (R * R - 1) * c * o : 0, tap = turned ? -c * o : c * o;
  for (int64_t from = 0; from < c; from++)
    for (int64_t at = 0; at < o; at += DL_LANES) {
      const int64_t panel = at / DL_NR * DL_NR;
      const int64_t place = panel * c + from * dl_width(o - panel) + at - panel;
      const float *g = k + first + from * o + at;
      dl_vf half[30], made[6];
      DL_UNROLL for (int i = 0; i < R; i++) {
        dl_vf line[5];
        DL_UNROLL for (int j = 0; j < R; j++) line[j] = dl_load(g + (R * i + j) * tap);
        dl_wino_kernel(R, line, 1, half + 6 * i, 1);
      }
      DL_UNROLL for (int j = 0; j < 6; j++) {
        dl_wino_kernel(R, half + j, 6, made, 1);
        DL_UNROLL for (int i = 0; i < 6; i++) dl_store(to + (6 * i + j) * (c * o + DL_PLACE_PAD) + place, made[i]);
      }
    }
}

/* The kernel's gradient from 36 matrices [c][o]. */
DL_INLINE void dl_wino_sums(const int R, int64_t size, const float *from, float *k) {
  for (int64_t at = 0; at < size; at += DL_LANES) {
    dl_vf half[30], made[5];
    DL_ROLLED for (int i = 0; i < 6; i++) {
      dl_vf line[6];
      DL_UNROLL for (int j = 0; j < 6; j++) line[j] = dl_load(from + (6 * i + j) * (size + DL_PLACE_PAD) + at);
      dl_wino_gather(R, line, 1, half + R * i, 1);
    }
    DL_ROLLED for (int j = 0; j < R; j++) {
      dl_wino_gather(R, half + j, R, made, 1);
      DL_UNROLL for (int i = 0; i < R; i++) dl_store(k + (R * i + j) * size + at, made[i]);
    }
  }
}

/* Functions for each side of a kernel, R, with tiles of M x M pixels; what a program does not use, compilers leave out. */
typedef struct {
  void (*y_tile)(const float *, int64_t, int64_t, float *, int64_t);
  void (*pixels)(const float *, int64_t, int64_t, float *, int64_t, int64_t, int64_t);
  void (*matrices)(int64_t, int64_t, const float *, _Bool, float *);
  void (*sums)(int64_t, const float *, float *);
} dl_wino_side;

/* What the chunks share. */
typedef struct {
  const dl_conv *d;
  const dl_wino_side *side;
  dl_tiling tiling;
  const float *x, *matrices;
  float *y;
  /* For the kernel's gradient: of the block at hand the first strip and how many tiles; where they are made. */
  int64_t first, tiles, apart_x, apart_y;
  float *tiles_x, *tiles_y, *sums;
} dl_wino;

/* The strip of a number: its image, first row of tiles, and how many rows. */
typedef struct {
  int64_t image, row, rows;
} dl_strip;
DL_INLINE dl_strip dl_strip_of(const dl_tiling *a, int64_t number) {
  const int64_t row = number % a->strips * a->rows;
  return (dl_strip){number / a->strips, row, a->down - row < a->rows ? a->down - row : a->rows};
}

/* Floats of the frame of a strip of x, which is larger than one of y. */
DL_INLINE int64_t dl_wino_frame(const dl_conv *d, const dl_tiling *a) {
  return (a->m * a->rows + d->kh - 1) * (a->m * a->across + d->kh - 1) * d->c;
}

/* A frame of images of h x w x c: its rows are `first` and on of the image that the strip is of, or of all of them. */
DL_FUNCTION void dl_wino_framed(const dl_conv *d, const dl_tiling *a, int64_t image, const float *x, int64_t h,
                                int64_t w, int64_t c, float *to, int64_t rows, int64_t columns, int64_t first,
                                int64_t left) {
  if (!a->period) {
    dl_frame_f32(x + image * h * w * c, h, w, c, to, rows, columns, -first, left);
    return;
  }
  for (int64_t r = 0; r < rows; r++) {
    const int64_t q = first + r, i = q / a->period, row = q % a->period;
    const _Bool there = q >= 0 && i < d->n && row < h;
    dl_frame_f32(there ? x + (i * h + row) * w * c : x, there, w, c, to + r * columns * c, 1, columns, 0, left);
  }
}

/* The tiles of one strip of x. */
DL_FUNCTION void dl_wino_strip(const dl_conv *d, const dl_tiling *a, dl_strip s, const float *x, float *frame,
                               float *to, int64_t apart) {
  const int64_t edge = d->kh - 1, width = a->m * a->across + edge;
  dl_wino_framed(d, a, s.image, x, d->h, d->w, d->c, frame, a->m * s.rows + edge, width, a->m * s.row - d->top,
                 d->left);
  for (int64_t i = 0; i < s.rows; i++)
    for (int64_t j = 0; j < a->across; j++, to += d->c)
      dl_wino_tile(frame + (i * width + j) * a->m * d->c, width, d->c, to, apart);
}

/* A place's product, C = A B or C += A B; columns of B in panels, the last may be of one vector. */
DL_FUNCTION void dl_wino_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                                 const float *b, _Bool packed, float *c, _Bool add) {
  const int64_t panels = n / DL_NR, edge = panels * DL_NR;
  const dl_steps into = {k, am, ak, packed ? DL_NR : n, packed ? k * DL_NR : DL_NR, 0, n, add};
  const dl_steps last = {k, am, ak, packed ? DL_LANES : n, 0, 0, n, add};
  for (int64_t rows; m > 0; m -= rows, a += rows * am, c += rows * n) {
    rows = dl_even_rows(m, DL_MR);
    dl_evens[rows - 1](&into, a, b, panels, c);
    if (edge < n) dl_even_edge(rows, &last, a, b + panels * into.b_jump, c + edge);
  }
}

/* A block of tiles to its pixels. */
DL_FUNCTION void dl_wino_block(void *context, int64_t block, void *scratch) {
  const dl_wino *w = (const dl_wino *)context;
  const dl_conv *d = w->d;
  const dl_tiling *a = &w->tiling;
  const int64_t all = a->images * a->strips, first = block * a->together;
  const int64_t last = first + a->together < all ? first + a->together : all;
  const int64_t apart = a->tiles * d->c + DL_PLACE_PAD, apart_to = a->tiles * d->o + DL_PLACE_PAD;
  float *from = (float *)scratch, *to = from + DL_PLACES * apart, *frame = to + DL_PLACES * apart_to;
  int64_t tiles = 0;
  for (int64_t q = first; q < last; q++) {
    const dl_strip s = dl_strip_of(a, q);
    dl_wino_strip(d, a, s, w->x, frame, from + tiles * d->c, apart);
    tiles += s.rows * a->across;
  }
  for (int64_t p = 0; p < DL_PLACES; p++)
    dl_wino_product(tiles, d->o, d->c, from + p * apart, d->c, 1, w->matrices + p * dl_wino_apart(d), 1,
                    to + p * apart_to, 0);
  const float *made = to;
  for (int64_t q = first; q < last; q++) {
    const dl_strip s = dl_strip_of(a, q);
    for (int64_t i = s.row; i < s.row + s.rows; i++)
      for (int64_t j = 0; j < a->across; j++, made += d->o) {
        float *y = w->y + ((s.image * d->oh + i * a->m) * d->ow + j * a->m) * d->o;
        w->side->pixels(made, apart_to, d->o, y, d->ow, d->oh - i * a->m, d->ow - j * a->m);
      }
  }
}

/* Floats of scratch of a block. */
DL_INLINE int64_t dl_wino_block_floats(const dl_conv *d, const dl_tiling *a) {
  return DL_PLACES * (a->tiles * (d->c + d->o) + 2 * DL_PLACE_PAD) + dl_wino_frame(d, a);
}

DL_FUNCTION void dl_wino_blocks(const dl_wino_side *side, const dl_conv *d, const float *x, const float *matrices,
                                float *y, float *scratch) {
  dl_wino work = {d, side, dl_tiling_of(d, 0), x, matrices, y};
  if (d->n * dl_conv_cost(d) >= DL_PARALLEL_WORK)
    dl_parallel(work.tiling.blocks, dl_wino_block, &work, scratch, 4 * dl_wino_block_floats(d, &work.tiling));
  else
    for (int64_t i = 0; i < work.tiling.blocks; i++) dl_wino_block(&work, i, scratch);
}

/* scratch: 36 matrices, then that of a block */
DL_FUNCTION void dl_wino_conv(const dl_wino_side *side, const dl_conv *d, const float *x, const float *k, float *y,
                              float *scratch) {
  side->matrices(d->c, d->o, k, 0, scratch);
  dl_wino_blocks(side, d, x, scratch, y, scratch + DL_PLACES * dl_wino_apart(d));
}

/* scratch: 36 matrices, then the kernel with its channels exchanged, or that of a block */
DL_FUNCTION void dl_wino_conv_input_grad(const dl_wino_side *side, const dl_conv *d, const float *y, const float *k,
                                         float *x, float *scratch) {
  const int64_t size = d->c * d->o, edge = d->kh - 1;
  const dl_conv back = {d->n, d->oh, d->ow, d->o, d->kh, d->kw,         d->c,
                        d->h, d->w,  1,     1,    edge - d->top, edge - d->left};
  float *exchanged = scratch + DL_PLACES * dl_wino_apart(d);
  for (int64_t t = 0; t < d->kh * d->kw; t++)
    dl_transpose_f32(d->c, d->o, k + t * size, d->o, exchanged + t * size, d->c);
  side->matrices(d->o, d->c, exchanged, 1, scratch);
  dl_wino_blocks(side, &back, y, scratch, x, exchanged);
}

/* Tiles of x and of y of one strip of a block. */
DL_FUNCTION void dl_wino_both_strips(void *context, int64_t number, void *scratch) {
  const dl_wino *w = (const dl_wino *)context;
  const dl_conv *d = w->d;
  const dl_tiling *a = &w->tiling;
  const dl_strip s = dl_strip_of(a, w->first + number);
  /* Of this block, before this strip: the strips of an image are alike but for its last one. */
  int64_t tiles = 0;
  for (int64_t q = w->first; q < w->first + number; q++) tiles += dl_strip_of(a, q).rows * a->across;
  float *frame = (float *)scratch;
  dl_wino_strip(d, a, s, w->x, frame, w->tiles_x + tiles * d->c, w->apart_x);
  const int64_t width = a->m * a->across;
  dl_wino_framed(d, a, s.image, w->matrices, d->oh, d->ow, d->o, frame, a->m * s.rows, width, a->m * s.row, 0);
  float *to = w->tiles_y + tiles * d->o;
  for (int64_t i = 0; i < s.rows; i++)
    for (int64_t j = 0; j < a->across; j++, to += d->o)
      w->side->y_tile(frame + (i * width + j) * a->m * d->o, width, d->o, to, w->apart_y);
}

/* A place's sums over the tiles of a block. */
DL_FUNCTION void dl_wino_place(void *context, int64_t p, void *scratch) {
  const dl_wino *w = (const dl_wino *)context;
  const dl_conv *d = w->d;
  (void)scratch;
  dl_wino_product(d->c, d->o, w->tiles, w->tiles_x + p * w->apart_x, 1, d->c, w->tiles_y + p * w->apart_y, 0,
                  w->sums + p * dl_wino_apart(d), w->first > 0);
}

/* scratch: 36 matrices, tiles of x, tiles of y, a frame */
DL_FUNCTION void dl_wino_conv_weight_grad(const dl_wino_side *side, const dl_conv *d, const float *x, const float *y,
                                          float *k, float *scratch) {
  dl_wino work = {d, side, dl_tiling_of(d, 1), x, y, 0};
  const dl_tiling *a = &work.tiling;
  const int64_t all = a->images * a->strips, wide = d->c > d->o ? d->c : d->o;
  const int64_t frame = (a->m * a->rows + d->kh - 1) * (a->m * a->across + d->kh - 1) * wide;
  const _Bool split = d->n * dl_conv_cost(d) >= DL_PARALLEL_WORK;
  work.apart_x = a->tiles * d->c + DL_PLACE_PAD;
  work.apart_y = a->tiles * d->o + DL_PLACE_PAD;
  work.sums = scratch;
  work.tiles_x = scratch + DL_PLACES * dl_wino_apart(d);
  work.tiles_y = work.tiles_x + DL_PLACES * work.apart_x;
  float *frames = work.tiles_y + DL_PLACES * work.apart_y;
  for (int64_t first = 0; first < all; first += a->together) {
    const int64_t count = all - first < a->together ? all - first : a->together;
    work.first = first;
    work.tiles = 0;
    for (int64_t q = first; q < first + count; q++) work.tiles += dl_strip_of(a, q).rows * a->across;
    if (split) {
      dl_parallel(count, dl_wino_both_strips, &work, frames, 4 * frame);
      dl_parallel(DL_PLACES, dl_wino_place, &work, 0, 0);
    } else {
      for (int64_t i = 0; i < count; i++) dl_wino_both_strips(&work, i, frames);
      for (int64_t p = 0; p < DL_PLACES; p++) dl_wino_place(&work, p, 0);
    }
  }
  side->sums(d->c * d->o, scratch, k);
}

#define DL_WINO(R, M)                                                                                                \
  DL_FUNCTION void dl_wino_y_tile_##R(const float *y, int64_t width, int64_t c, float *to, int64_t apart) {          \
    dl_wino_y_tile(M, y, width, c, to, apart);                                                                       \
  }                                                                                                                  \
  DL_FUNCTION void dl_wino_pixels_##R(const float *p, int64_t apart, int64_t o, float *y, int64_t width,             \
                                      int64_t rows, int64_t columns) {                                               \
    dl_wino_pixels(M, p, apart, o, y, width, rows, columns);                                                         \
  }                                                                                                                  \
  DL_FUNCTION void dl_wino_matrices_##R(int64_t c, int64_t o, const float *k, _Bool turned, float *to) {             \
    dl_wino_matrices(R, c, o, k, turned, to);                                                                        \
  }                                                                                                                  \
  DL_FUNCTION void dl_wino_sums_##R(int64_t size, const float *from, float *k) { dl_wino_sums(R, size, from, k); }   \
  static const dl_wino_side dl_wino_side_##R __attribute__((unused)) = {dl_wino_y_tile_##R, dl_wino_pixels_##R,      \
                                                                        dl_wino_matrices_##R, dl_wino_sums_##R};
DL_WINO(3, 4)
DL_WINO(5, 2)
