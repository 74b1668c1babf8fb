/* Convolutions with few multiplications: of 3x3 kernels a quarter of them, of 5x5 kernels 16 of 100.
 *
 * Minimal filtering over tiles (Lavin and Gray 2016, "Fast algorithms for convolutional neural networks", equation 12,
 * with Toom and Cook's points, zero and infinity among them). 4x4 output pixels come of one tile, of 6x6 pixels for 3x3,
 * of 8x8 for 5x5. An image becomes tiles, each tile and channel as many numbers (B'dB) as it has pixels, the kernel as
 * many matrices (GgG'); what was a sum over places and channels is one product of matrices for each of these places; and
 * the products become pixels (A'MA).
 *
 * Where four does not divide an image, its last tile is short: it has fewer of the points. At each of these a kernel is
 * what it is for whole tiles, but that it would not be divided by the differences to points that are left out, so numbers
 * of the image are multiplied with these. The matrices are the same, and a place that short tiles are without skips them.
 *
 * The gradient by the input is the same with the kernel turned about. That by the kernel is the transpose: y's tiles
 * become as many numbers (AyA'), each place's product sums over the tiles that have it, and the matrices become the
 * kernel (G'MG).
 *
 * Errors are relative to the largest numbers of a tile and not of a window. For 3x3 they are some five times those of
 * plain sums (with the usual points 1 and 2 eleven times, as powers of what is far from 1 differ more in size), for 5x5
 * some ten times, most of it from rounding the sums over channels.
 * Channels are multiples of LANES. All tiles of some strips (rows of tiles of an image) make a block: the products of a
 * block stay in the second cache. Blocks depend on sizes alone, so results do not depend on threads.
 *
 * Bounds: kernels are 3x3 or 5x5, strides 1, channels multiples of 16 >= LANES, and no size is 0 (winograd.py's fits). A
 * block has at most `tiles` tiles, so a place's matrices have tiles * c + PAD and tiles * o + PAD floats, points^2 of them
 * each; kinds count the same tiles, so next.at[kind] stays below the next kind's begin. Frames have (4 rows + r - 1) *
 * (4 across + r - 1) pixels and pixels are stored for rows < oh, columns < ow (dl_pass.most, .lines). half[] has 8 lines of
 * 8 points of LANES floats: PLACES_MAX * LANES.
 */
#define DL_SIDE 4              /* output pixels of a tile's side */
#define DL_BLOCK_FLOATS 147456 /* of both sides of a block's products */
#define DL_BLOCK_TILES 32      /* a block has more only where it has few channels */
#define DL_CHAIN 32            /* products that are summed at once, for 5x5: the errors are of sums for the most part */
#define DL_PLACES_MAX 64
#define DL_PLACE_PAD 16        /* places lie no power of two apart: a tile is written to all of them */
#ifndef DL_WINO_SHORT
#define DL_WINO_SHORT ~0 /* the points that short tiles of a program have, as bits (tiles.py): others are whole ones */
#endif

/* How the images of a convolution fall into tiles, strips and blocks. */
typedef struct {
  int64_t points;                /* of a whole tile's side */
  int64_t down, across;          /* tiles of an image */
  int64_t last_down, last_across; /* points of the last ones */
  int64_t rows, strips;          /* rows of tiles of a strip; strips of an image */
  int64_t together, blocks, tiles; /* strips of a block, blocks, the most tiles of a block */
} dl_tiling;

/* Points of the last of the tiles of so many pixels. */
DL_INLINE int64_t dl_last_points(int64_t r, int64_t size) {
  const int64_t left = size % DL_SIDE, points = r == 5 ? left < 3 ? 6 : 8 : left + 2;
  return left && points < r + 3 && DL_WINO_SHORT >> points & 1 ? points : r + 3;
}

DL_FUNCTION dl_tiling dl_tiling_of(const dl_conv *d) {
  dl_tiling a = {d->kh + 3};
  a.down = (d->oh + DL_SIDE - 1) / DL_SIDE;
  a.across = (d->ow + DL_SIDE - 1) / DL_SIDE;
  a.last_down = dl_last_points(d->kh, d->oh);
  a.last_across = dl_last_points(d->kh, d->ow);
  int64_t most = DL_BLOCK_FLOATS / (a.points * a.points * (d->c + d->o));
  if (most < DL_BLOCK_TILES) most = DL_BLOCK_TILES;
  a.rows = most / a.across < 1 ? 1 : most / a.across < a.down ? most / a.across : a.down;
  a.strips = (a.down + a.rows - 1) / a.rows;
  a.rows = (a.down + a.strips - 1) / a.strips;
  const int64_t all = d->n * a.strips, fit = most / (a.rows * a.across) < 1 ? 1 : most / (a.rows * a.across);
  a.blocks = (all + fit - 1) / fit;
  a.together = a.blocks ? (all + a.blocks - 1) / a.blocks : 0;
  a.tiles = a.together * a.rows * a.across;
  return a;
}

/* The points of kernels of R x R: 0, as many pairs of one and its negative as this gives, and infinity; a tile of K
 * points has the first K - 1 of them and infinity. Their squares and what is made of these are exact. */
DL_INLINE float dl_point(const int R, const int i) {
  return R == 3 ? i == 0 ? 0.625f : 1.5f : i == 0 ? 0.5f : i == 1 ? 2.0f : 1.0f;
}
DL_INLINE float dl_power(const int R, const int i, const int power) {
  const float p = dl_point(R, i);
  return power == 0 ? 1.0f : power == 1 ? p : power == 2 ? p * p : power == 3 ? p * p * p : p * p * p * p;
}
DL_INLINE float dl_square(const int R, const int i) { return dl_power(R, i, 2); }
/* What a kernel is divided by at 0, and twice that at the others: the differences to the other points. */
DL_INLINE float dl_at_zero(const int R) {
  return 1 / (dl_square(R, 0) * dl_square(R, 1) * (R == 5 ? dl_square(R, 2) : 1.0f));
}
DL_INLINE float dl_at(const int R, const int i) {
  const float p = dl_square(R, i), q = dl_square(R, i == 0), s = dl_square(R, i == 2 ? 1 : 2);
  return 0.5f / (p * (p - q) * (R == 5 ? p - s : 1.0f));
}

/* Numbers of a tile under a polynomial of x^2 that is zero at some squares. */
DL_INLINE dl_vf dl_zeros1(const dl_vf *d, float p) { return d[2] - p * d[0]; }
DL_INLINE dl_vf dl_zeros2(const dl_vf *d, float p, float q) { return d[4] + (p * q * d[0] - (p + q) * d[2]); }
DL_INLINE dl_vf dl_zeros3(const dl_vf *d, float p, float q, float s) {
  return (d[6] - p * q * s * d[0]) + ((p * q + p * s + q * s) * d[2] - (p + q + s) * d[4]);
}

/* K numbers of a tile: the first K - 1, and the last. */
DL_INLINE void dl_wino_input(const int R, const int K, const dl_vf *d, dl_vf *to) {
  const float a = dl_point(R, 0), b = dl_point(R, 1), a2 = dl_square(R, 0), b2 = dl_square(R, 1), c2 = dl_square(R, 2);
  dl_vf *last = to + R + 2;
  if (K == 8) {
    const dl_vf u = dl_zeros2(d + 2, b2, c2), v = a * dl_zeros2(d + 1, b2, c2);
    const dl_vf w = dl_zeros2(d + 2, a2, c2), x = b * dl_zeros2(d + 1, a2, c2);
    const dl_vf y = dl_zeros2(d + 2, a2, b2), z = dl_point(R, 2) * dl_zeros2(d + 1, a2, b2);
    to[0] = -dl_zeros3(d, a2, b2, c2);
    to[1] = u + v, to[2] = u - v;
    to[3] = w + x, to[4] = w - x;
    to[5] = y + z, to[6] = y - z;
    *last = dl_zeros3(d + 1, a2, b2, c2);
  } else if (K == 6) {
    const float near = R == 5 ? a2 - c2 : 1.0f, far = R == 5 ? b2 - c2 : 1.0f, zero = R == 5 ? c2 : 1.0f;
    const dl_vf u = near * dl_zeros1(d + 2, b2), v = near * a * dl_zeros1(d + 1, b2);
    const dl_vf w = far * dl_zeros1(d + 2, a2), x = far * b * dl_zeros1(d + 1, a2);
    to[0] = zero * dl_zeros2(d, a2, b2);
    to[1] = u + v, to[2] = u - v;
    to[3] = w + x, to[4] = w - x;
    *last = dl_zeros2(d + 1, a2, b2);
  } else if (K == 5) { /* without -b */
    const dl_vf u = dl_zeros1(d + 1, a2), v = a2 * d[0] - d[2];
    const dl_vf even = b * u + (a2 - b2) * d[2];
    const dl_vf odd = a * dl_zeros1(d + 1, b2);
    to[0] = b * u + b2 * v;
    to[1] = even + odd, to[2] = even - odd;
    to[3] = 2 * b * u;
    *last = dl_zeros1(d + 2, a2) - b * u;
  } else if (K == 4) { /* without b and -b */
    const dl_vf u = (a2 - b2) * d[2], v = (a2 - b2) * a * d[1];
    to[0] = -b2 * dl_zeros1(d, a2);
    to[1] = u + v, to[2] = u - v;
    *last = dl_zeros1(d + 1, a2);
  } else { /* 0, a and infinity */
    to[0] = a2 * b2 * d[0] - a * b2 * d[1];
    to[1] = 2 * a * (a2 - b2) * d[1];
    *last = d[2] - a * d[1];
  }
}

/* K - R + 1 numbers of y as K. */
DL_INLINE void dl_wino_spread(const int R, const int K, const dl_vf *y, dl_vf *to) {
  const int m = K - R + 1, pairs = K / 2 - 1;
  to[0] = y[0];
  DL_UNROLL for (int i = 0; i < pairs; i++) {
    dl_vf even = y[0], odd = dl_power(R, i, 1) * y[1];
    if (m > 2) even += dl_power(R, i, 2) * y[2];
    if (m > 3) odd += dl_power(R, i, 3) * y[3];
    to[2 * i + 1] = even + odd;
    to[2 * i + 2] = even - odd;
  }
  if (K == 3) to[1] = y[0];
  if (K == 5) to[3] = y[0] + dl_power(R, 1, 1) * y[1] + dl_power(R, 1, 2) * y[2];
  to[R + 2] = y[m - 1];
}

/* K numbers as so many sums, each at a point times a power of it. `kernel`: and divided as a kernel is. */
DL_INLINE void dl_wino_sum(const int R, const int K, const int made, const _Bool kernel, const dl_vf *p, dl_vf *to) {
  const int pairs = K / 2 - 1;
  dl_vf both[3], apart[3];
  DL_UNROLL for (int i = 0; i < pairs; i++) {
    const dl_vf u = p[2 * i + 1], v = p[2 * i + 2];
    both[i] = u + v, apart[i] = u - v;
  }
  DL_UNROLL for (int j = 0; j < made; j++) {
    dl_vf sum = {0};
    DL_UNROLL for (int i = 0; i < pairs; i++) {
      const dl_vf term = dl_power(R, i, j) * (kernel ? dl_at(R, i) : 1.0f) * (j % 2 ? apart[i] : both[i]);
      sum = i ? sum + term : term;
    }
    if (K % 2) {
      const dl_vf term = dl_power(R, pairs, j) * (kernel ? dl_at(R, pairs) : 1.0f) * p[2 * pairs + 1];
      sum = pairs ? sum + term : term;
    }
    if (j == 0) sum += (kernel ? dl_at_zero(R) : 1.0f) * p[0];
    if (j == made - 1) sum += p[R + 2];
    to[j] = sum;
  }
}

/* R numbers of a kernel as R + 3. */
DL_INLINE void dl_wino_kernel(const int R, const dl_vf *g, int step, dl_vf *to) {
  to[0] = dl_at_zero(R) * g[0];
  DL_UNROLL for (int i = 0; i < (R + 1) / 2; i++) {
    dl_vf even = g[0] + dl_power(R, i, 2) * g[2 * step], odd = g[step];
    if (R == 5) even += dl_power(R, i, 4) * g[4 * step], odd += dl_power(R, i, 2) * g[3 * step];
    to[2 * i + 1] = dl_at(R, i) * (even + dl_point(R, i) * odd);
    to[2 * i + 2] = dl_at(R, i) * (even - dl_point(R, i) * odd);
  }
  to[R + 2] = g[(R - 1) * step];
}

/* Half of a transform: of each line, so many numbers `step` apart become others, `to_step` apart. Lines begin `next`
 * apart, and those that are made `to_next`; `last` is the number of the last one, as places are the first ones of a tile,
 * and its last. Of what is made there are `most` numbers. */
typedef struct {
  int64_t points, lines, last, step, next, to_step, to_next, most;
} dl_pass;

/* Whether a place is one of so many points: they are the first ones, and the last. */
DL_INLINE _Bool dl_of_places(const int R, int64_t place, int64_t points) { return place < points - 1 || place == R + 2; }

enum { DL_WINO_INPUT, DL_WINO_SPREAD, DL_WINO_PIXELS, DL_WINO_GATHER };
DL_INLINE void dl_wino_lines(const int R, const int K, const int what, const dl_pass *s, const float *from, float *to) {
  const int m = K - R + 1, have = what == DL_WINO_INPUT ? K : what == DL_WINO_SPREAD ? m : R + 3;
  const int made = what == DL_WINO_PIXELS ? m : what == DL_WINO_GATHER ? R : R + 3;
  const int64_t step = s->step, to_step = s->to_step, most = s->most;
  DL_ROLLED for (int64_t left = s->lines, line = 0; left > 0; left--, line++) {
    const int64_t at = left > 1 ? line : s->last;
    const float *p = from + at * s->next;
    float *q = to + at * s->to_next;
    dl_vf had[8], out[8];
    DL_UNROLL for (int i = 0; i < have; i++)
      if (have < R + 3 || dl_of_places(R, i, K)) had[i] = dl_load(p + i * step);
    if (what == DL_WINO_INPUT)
      dl_wino_input(R, K, had, out);
    else if (what == DL_WINO_SPREAD)
      dl_wino_spread(R, K, had, out);
    else
      dl_wino_sum(R, K, made, what == DL_WINO_GATHER, had, out);
    DL_UNROLL for (int i = 0; i < made; i++)
      if (made < R + 3 ? i < most : dl_of_places(R, i, K)) dl_store(q + i * to_step, out[i]);
  }
}

/* The same with K as a constant. */
#define DL_IF_POINTS(R, K, WHAT) \
  if ((DL_WINO_SHORT >> K & 1) && s->points == K) dl_wino_lines(R, K, WHAT, s, from, to); else
#define DL_SHORT_3(WHAT) DL_IF_POINTS(3, 3, WHAT) DL_IF_POINTS(3, 4, WHAT) DL_IF_POINTS(3, 5, WHAT)
#define DL_SHORT_5(WHAT) DL_IF_POINTS(5, 6, WHAT)
#define DL_WINO_PASS(NAME, R, WHAT)                                               \
  DL_FUNCTION void NAME(const dl_pass *s, const float *from, float *to) {         \
    DL_SHORT_##R(WHAT) dl_wino_lines(R, R + 3, WHAT, s, from, to);                \
  }

typedef void dl_wino_pass(const dl_pass *, const float *, float *);
/* Both halves, of all channels: lines, and columns of what they became. */
DL_FUNCTION void dl_wino_both(dl_wino_pass *pass, const dl_pass *lines, const dl_pass *columns, int64_t channels,
                              const float *from, float *to) {
  float DL_ALIGN half[DL_PLACES_MAX * DL_LANES];
  for (int64_t at = 0; at < channels; at += DL_LANES) {
    pass(lines, from + at, half);
    pass(columns, half, to + at);
  }
}

/* Floats from one place's matrix to the next's. */
DL_INLINE int64_t dl_wino_apart(const dl_conv *d) { return d->c * d->o + DL_PLACE_PAD; }
DL_INLINE int64_t dl_wino_floats(const dl_conv *d) { return (d->kh + 3) * (d->kh + 3) * dl_wino_apart(d); }

/* The matrices of a kernel [R][R][c][o], turned about if so wished, in panels as a product reads them, of the places of
 * tiles of `down` x `across` points. */
DL_INLINE void dl_wino_matrices(const int R, int64_t c, int64_t o, const float *k, _Bool turned, float *to, int64_t down,
                                int64_t across) {
  const int64_t first = turned ? (R * R - 1) * c * o : 0, tap = turned ? -c * o : c * o;
  for (int64_t from = 0; from < c; from++)
    for (int64_t at = 0; at < o; at += DL_LANES) {
      const int64_t panel = at / DL_NR * DL_NR;
      const int64_t place = panel * c + from * dl_width(o - panel) + at - panel;
      const float *g = k + first + from * o + at;
      dl_vf half[40], made[8];
      DL_ROLLED for (int i = 0; i < R; i++) {
        dl_vf line[5];
        DL_UNROLL for (int j = 0; j < R; j++) line[j] = dl_load(g + (R * i + j) * tap);
        dl_wino_kernel(R, line, 1, half + (R + 3) * i);
      }
      DL_ROLLED for (int j = 0; j < R + 3; j = j == across - 2 ? R + 2 : j + 1) {
        dl_wino_kernel(R, half + j, R + 3, made);
        DL_UNROLL for (int i = 0; i < R + 3; i++)
          if (dl_of_places(R, i, down)) dl_store(to + ((R + 3) * i + j) * (c * o + DL_PLACE_PAD) + place, made[i]);
      }
    }
}

/* Functions for each side of a kernel, R; what a program does not use, compilers leave out. */
typedef struct {
  dl_wino_pass *input, *spread, *pixels, *gather;
  void (*matrices)(int64_t, int64_t, const float *, _Bool, float *, int64_t, int64_t);
} dl_wino_side;

/* The tiles of a block lie by kind: short across, whole, short down, and short both ways. So the tiles that have a place
 * are side by side, whichever place it is. Here is where each kind begins, and where the last ends. */
typedef struct {
  int64_t at[5];
} dl_kinds;

/* What the chunks share. */
typedef struct {
  const dl_conv *d;
  const dl_wino_side *side;
  dl_tiling tiling;
  const float *x, *matrices;
  float *y;
  const dl_then *then; /* instead of y: rows of pixels are made where tiles were */
  /* For the kernel's gradient: of the block at hand the first strip, and its tiles. */
  int64_t first, apart_x, apart_y;
  dl_kinds kinds;
  float *tiles_x, *tiles_y, *sums;
} dl_wino;

/* The strip of a number: its image, first row of tiles, how many rows, and whether the last of these is short. */
typedef struct {
  int64_t image, row, rows;
  _Bool ends_short;
} dl_strip;
DL_FUNCTION dl_strip dl_strip_of(const dl_tiling *a, int64_t number) {
  const int64_t row = number % a->strips * a->rows, rows = a->down - row < a->rows ? a->down - row : a->rows;
  return (dl_strip){number / a->strips, row, rows, row + rows == a->down && a->last_down < a->points};
}

DL_INLINE int dl_wino_kind(_Bool down, _Bool across) { return down ? 2 + across : !across; }
DL_FUNCTION dl_kinds dl_kinds_of(const dl_tiling *a, int64_t first, int64_t end) {
  const int64_t images = end / a->strips - first / a->strips, low = a->last_down < a->points ? images : 0;
  const int64_t high = images * a->down + (end % a->strips - first % a->strips) * a->rows - low;
  const int64_t narrow = a->last_across < a->points, wide = a->across - narrow;
  return (dl_kinds){{0, high * narrow, high * a->across, high * a->across + low * wide, (high + low) * a->across}};
}

/* Points and kind of a tile of a strip. */
typedef struct {
  int64_t down, across;
  int kind;
} dl_shape;
DL_INLINE dl_shape dl_shape_of(const dl_tiling *a, const dl_strip *s, int64_t row, int64_t column) {
  const _Bool low = s->ends_short && row == s->rows - 1, narrow = column == a->across - 1 && a->last_across < a->points;
  return (dl_shape){low ? a->last_down : a->points, narrow ? a->last_across : a->points, dl_wino_kind(low, narrow)};
}

/* The most points that a tile has. */
DL_INLINE int64_t dl_most_down(const dl_tiling *a) { return a->down > 1 ? a->points : a->last_down; }
DL_INLINE int64_t dl_most_across(const dl_tiling *a) { return a->across > 1 ? a->points : a->last_across; }

/* Floats of the frame of a strip, of c channels. */
DL_INLINE int64_t dl_wino_frame(const dl_conv *d, const dl_tiling *a, int64_t c) {
  return (DL_SIDE * a->rows + d->kh - 1) * (DL_SIDE * a->across + d->kh - 1) * c;
}

/* The tiles of one strip of images of h x w x c, made from frames that are by `less` smaller than those of x. */
DL_FUNCTION void dl_wino_strip(const dl_tiling *a, const dl_strip *s, const float *x, int64_t h, int64_t w, int64_t c,
                               int64_t top, int64_t left, int64_t less, float *frame, dl_wino_pass *pass, float *to,
                               int64_t apart, dl_kinds *next) {
  const int64_t width = DL_SIDE * (a->across - 1) + a->last_across - less;
  const int64_t rows = DL_SIDE * (s->rows - 1) + (s->ends_short ? a->last_down : a->points) - less;
  dl_frame_f32(x + s->image * h * w * c, h, w, c, frame, rows, width, top - DL_SIDE * s->row, left);
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < a->across; j++) {
      const dl_shape f = dl_shape_of(a, s, i, j);
      const dl_pass lines = {f.across, f.down - less, f.down - less - 1, c, width * c, DL_LANES, 8 * DL_LANES, 8};
      const dl_pass columns = {f.down, f.across, a->points - 1, 8 * DL_LANES, DL_LANES, a->points * apart, apart, 8};
      dl_wino_both(pass, &lines, &columns, c, frame + (i * width + j) * DL_SIDE * c, to + next->at[f.kind]++ * c);
    }
}

/* Of a block the first tile that has a place, and the end of them. */
DL_INLINE void dl_wino_having(const dl_tiling *a, const dl_kinds *k, int64_t place, int64_t *from, int64_t *to) {
  const _Bool down = dl_of_places((int)a->points - 3, place / a->points, a->last_down);
  const _Bool across = dl_of_places((int)a->points - 3, place % a->points, a->last_across);
  *from = across ? 0 : k->at[1];
  *to = k->at[!down ? 2 : !across ? 3 : 4];
}

DL_INLINE int64_t dl_wino_chain(const dl_conv *d) { return d->kh == 5 ? DL_CHAIN : INT64_MAX / 2; }

/* A place's product, C = A B or C += A B; columns of B in panels, the last may be of one vector. Terms are summed `chain`
 * at a time, as errors grow with the square root of that. */
DL_FUNCTION void dl_wino_product(int64_t m, int64_t n, int64_t k, int64_t chain, const float *a, int64_t am, int64_t ak,
                                 const float *b, _Bool packed, float *c, _Bool add) {
  const int64_t panels = n / DL_NR, edge = panels * DL_NR, wide = packed ? DL_NR : n, narrow = packed ? DL_LANES : n;
  const int64_t jump = packed ? k * DL_NR : DL_NR;
  for (int64_t rows; m > 0; m -= rows, a += rows * am, c += rows * n) {
    rows = dl_rows_there(dl_even_rows(m, DL_MR), DL_ROWS_EVEN);
    for (int64_t from = 0; from == 0 || from < k; from += chain) {
      const int64_t terms = k - from < chain ? k - from : chain;
      const dl_steps into = {terms, am, ak, wide, jump, 0, n, add || from > 0};
      const dl_steps last = {terms, am, ak, narrow, 0, 0, n, add || from > 0};
      dl_evens[rows - 1](&into, a + from * ak, b + from * wide, panels, c);
      if (edge < n) dl_even_edge(rows, &last, a + from * ak, b + panels * jump + from * narrow, c + edge);
    }
  }
}

/* A block of tiles to its pixels. */
DL_FUNCTION void dl_wino_block(void *context, int64_t block, void *scratch) {
  const dl_wino *w = (const dl_wino *)context;
  const dl_conv *d = w->d;
  const dl_tiling *a = &w->tiling;
  const int64_t all = d->n * a->strips, first = block * a->together, places = a->points * a->points;
  const int64_t last = first + a->together < all ? first + a->together : all;
  const int64_t apart = a->tiles * d->c + DL_PLACE_PAD, apart_to = a->tiles * d->o + DL_PLACE_PAD;
  float *from = (float *)scratch, *to = from + places * apart, *frame = to + places * apart_to;
  const dl_kinds kinds = dl_kinds_of(a, first, last);
  dl_kinds next = kinds;
  for (int64_t q = first; q < last; q++) {
    const dl_strip s = dl_strip_of(a, q);
    dl_wino_strip(a, &s, w->x, d->h, d->w, d->c, d->top, d->left, 0, frame, w->side->input, from, apart, &next);
  }
  for (int64_t p = 0; p < places; p++) {
    int64_t begin, end;
    dl_wino_having(a, &kinds, p, &begin, &end);
    dl_wino_product(end - begin, d->o, d->c, dl_wino_chain(d), from + p * apart + begin * d->c, d->c, 1,
                    w->matrices + p * dl_wino_apart(d), 1, to + p * apart_to + begin * d->o, 0);
  }
  next = kinds;
  for (int64_t q = first; q < last; q++) {
    const dl_strip s = dl_strip_of(a, q);
    for (int64_t i = 0; i < s.rows; i++) {
      const int64_t above = (s.row + i) * DL_SIDE, left = d->oh - above, row = s.image * d->oh + above;
      float *y = DL_FOLLOWED(w->then) ? from : w->y + row * d->ow * d->o;
      for (int64_t j = 0; j < a->across; j++) {
        const dl_shape f = dl_shape_of(a, &s, i, j);
        const int64_t column = j * DL_SIDE;
        const int64_t columns = d->ow - column < f.across - d->kh + 1 ? d->ow - column : f.across - d->kh + 1;
        const dl_pass lines = {f.across, f.down, a->points - 1, apart_to, a->points * apart_to, DL_LANES,
                               8 * DL_LANES, 8};
        const dl_pass across = {f.down, columns, columns - 1, 8 * DL_LANES, DL_LANES, d->ow * d->o, d->o, left};
        dl_wino_both(w->side->pixels, &lines, &across, d->o, to + next.at[f.kind]++ * d->o, y + column * d->o);
      }
      if (DL_FOLLOWED(w->then)) w->then->rows(w->then->context, y, row, row + (left < DL_SIDE ? left : DL_SIDE));
    }
  }
}

/* Floats of scratch of a block. */
DL_INLINE int64_t dl_wino_block_floats(const dl_conv *d, const dl_tiling *a) {
  return a->points * a->points * (a->tiles * (d->c + d->o) + 2 * DL_PLACE_PAD) + dl_wino_frame(d, a, d->c);
}

/* scratch: the matrices, then that of a block */
DL_FUNCTION void dl_wino_blocks(const dl_wino_side *side, const dl_conv *d, const float *x, const float *k, _Bool turned,
                                float *y, float *scratch, const dl_then *then) {
  dl_wino work = {d, side, dl_tiling_of(d), x, scratch, y, then};
  float *rest = scratch + dl_wino_floats(d);
  side->matrices(d->c, d->o, k, turned, scratch, dl_most_down(&work.tiling), dl_most_across(&work.tiling));
  if (d->n * dl_conv_cost(d) >= DL_PARALLEL_WORK)
    dl_parallel(work.tiling.blocks, dl_wino_block, &work, rest, 4 * dl_wino_block_floats(d, &work.tiling));
  else
    for (int64_t i = 0; i < work.tiling.blocks; i++) dl_wino_block(&work, i, rest);
}

DL_FUNCTION void dl_wino_conv(const dl_wino_side *side, const dl_conv *d, const float *x, const float *k, float *y,
                              float *scratch, const dl_then *then) {
  dl_wino_blocks(side, d, x, k, 0, y, scratch, then);
}

/* scratch: the matrices, then the kernel with its channels exchanged, or that of a block */
DL_FUNCTION void dl_wino_conv_input_grad(const dl_wino_side *side, const dl_conv *d, const float *y, const float *k,
                                         float *x, float *scratch) {
  const int64_t size = d->c * d->o, edge = d->kh - 1;
  const dl_conv back = {d->n, d->oh, d->ow, d->o, d->kh, d->kw,         d->c,
                        d->h, d->w,  1,     1,    edge - d->top, edge - d->left};
  float *exchanged = scratch + dl_wino_floats(d);
  for (int64_t t = 0; t < d->kh * d->kw; t++)
    dl_transpose_f32(d->c, d->o, k + t * size, d->o, exchanged + t * size, d->c);
  dl_wino_blocks(side, &back, y, exchanged, 1, x, scratch, 0);
}

/* Tiles of x and of y of one strip of a block. */
DL_FUNCTION void dl_wino_both_strips(void *context, int64_t number, void *scratch) {
  const dl_wino *w = (const dl_wino *)context;
  const dl_conv *d = w->d;
  const dl_tiling *a = &w->tiling;
  const dl_strip s = dl_strip_of(a, w->first + number);
  const dl_kinds before = dl_kinds_of(a, w->first, w->first + number);
  dl_kinds next = w->kinds, again;
  for (int i = 0; i < 4; i++) next.at[i] += before.at[i + 1] - before.at[i];
  again = next;
  dl_wino_strip(a, &s, w->x, d->h, d->w, d->c, d->top, d->left, 0, (float *)scratch, w->side->input, w->tiles_x,
                w->apart_x, &next);
  dl_wino_strip(a, &s, w->matrices, d->oh, d->ow, d->o, 0, 0, d->kh - 1, (float *)scratch, w->side->spread, w->tiles_y,
                w->apart_y, &again);
}

/* A place's sums over the tiles of a block. */
DL_FUNCTION void dl_wino_place(void *context, int64_t p, void *scratch) {
  const dl_wino *w = (const dl_wino *)context;
  const dl_conv *d = w->d;
  int64_t from, to;
  (void)scratch;
  dl_wino_having(&w->tiling, &w->kinds, p, &from, &to);
  dl_wino_product(d->c, d->o, to - from, dl_wino_chain(d), w->tiles_x + p * w->apart_x + from * d->c, 1, d->c,
                  w->tiles_y + p * w->apart_y + from * d->o, 0, w->sums + p * dl_wino_apart(d), w->first > 0);
}

/* scratch: the matrices, tiles of x, tiles of y, a frame */
DL_FUNCTION void dl_wino_conv_weight_grad(const dl_wino_side *side, const dl_conv *d, const float *x, const float *y,
                                          float *k, float *scratch) {
  dl_wino work = {d, side, dl_tiling_of(d), x, y, 0, 0};
  const dl_tiling *a = &work.tiling;
  const int64_t all = d->n * a->strips, places = a->points * a->points;
  const int64_t frame = dl_wino_frame(d, a, d->c > d->o ? d->c : d->o);
  const _Bool split = d->n * dl_conv_cost(d) >= DL_PARALLEL_WORK;
  work.apart_x = a->tiles * d->c + DL_PLACE_PAD;
  work.apart_y = a->tiles * d->o + DL_PLACE_PAD;
  work.sums = scratch;
  work.tiles_x = scratch + dl_wino_floats(d);
  work.tiles_y = work.tiles_x + places * work.apart_x;
  float *frames = work.tiles_y + places * work.apart_y;
  for (; work.first < all; work.first += a->together) {
    const int64_t count = all - work.first < a->together ? all - work.first : a->together;
    work.kinds = dl_kinds_of(a, work.first, work.first + count);
    if (split) {
      dl_parallel(count, dl_wino_both_strips, &work, frames, 4 * frame);
      dl_parallel(places, dl_wino_place, &work, 0, 0);
    } else {
      for (int64_t i = 0; i < count; i++) dl_wino_both_strips(&work, i, frames);
      for (int64_t p = 0; p < places; p++) dl_wino_place(&work, p, 0);
    }
  }
  const int64_t size = d->c * d->o, apart = dl_wino_apart(d);
  const int64_t down = dl_most_down(a), across = dl_most_across(a);
  const dl_pass lines = {across, down, a->points - 1, apart, a->points * apart, DL_LANES, 8 * DL_LANES, 8};
  const dl_pass columns = {down, d->kw, d->kw - 1, 8 * DL_LANES, DL_LANES, d->kw * size, size, 8};
  dl_wino_both(side->gather, &lines, &columns, size, scratch, k);
}

#define DL_WINO(R)                                                                                                    \
  DL_WINO_PASS(dl_wino_input_##R, R, DL_WINO_INPUT)                                                                   \
  DL_WINO_PASS(dl_wino_spread_##R, R, DL_WINO_SPREAD)                                                                 \
  DL_WINO_PASS(dl_wino_pixels_##R, R, DL_WINO_PIXELS)                                                                 \
  DL_WINO_PASS(dl_wino_gather_##R, R, DL_WINO_GATHER)                                                                 \
  DL_FUNCTION void dl_wino_matrices_##R(int64_t c, int64_t o, const float *k, _Bool turned, float *to, int64_t down,  \
                                        int64_t across) {                                                             \
    dl_wino_matrices(R, c, o, k, turned, to, down, across);                                                           \
  }                                                                                                                   \
  static const dl_wino_side dl_wino_side_##R __attribute__((unused)) = {                                              \
      dl_wino_input_##R, dl_wino_spread_##R, dl_wino_pixels_##R, dl_wino_gather_##R, dl_wino_matrices_##R};
DL_WINO(3)
DL_WINO(5)
