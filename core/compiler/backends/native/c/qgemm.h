/* Products of bytes: u8 images with signed kernels, summed in i32. Exact, so every path gives the same numbers.
 *
 * x [n][h][w][c], k [kh][kw][c/4][o][4], y [n][oh][ow][o]. A tile is ROWS pixels of the output, wherever they lie, by
 * WIDTH registers of output channels; four input channels at a time are one 32-bit number of x, the same for all
 * outputs, and 32 bits for each output of k. Where the processor has it, one instruction multiplies and adds all four
 * (AVX512-VNNI's vpdpbusd); AVX2 spreads bytes to 16 bits, the even ones and the odd ones, and multiplies and adds pairs
 * (vpmaddwd; its product of bytes would saturate); elsewhere each byte is spread to 32 bits. Blocks of channels go
 * outside, so that a block of the kernel is read from memory once and stays in the second cache.
 *
 * Bounds: p < oh and q < ow give t sh + u <= h - 1 and q sw + v <= w - 1, as there is no padding. The last register of
 * outputs loads and stores `last` of them; a tile repeats its last pixel and stores `rows` of them. c is a multiple of 4. A
 * sum has at most TERMS_MAX = (2^31 - 1) / (255 * 128) terms (type rule), so no i32 overflows.
 */

typedef struct {
  int64_t n, h, w, c, kh, kw, o, oh, ow, sh, sw;
} dl_qsizes;

#if defined(__AVX512VNNI__) && defined(__AVX512F__) && !defined(DL_PORTABLE)
#define DL_QLANES 16
typedef int32_t dl_qv __attribute__((vector_size(64)));
#elif defined(DL_PORTABLE)
#define DL_QLANES 1
#elif defined(__AVX2__)
#define DL_QLANES 8
typedef int32_t dl_qv __attribute__((vector_size(32)));
typedef int16_t dl_qh __attribute__((vector_size(32)));
#else
#define DL_QLANES 4
typedef int32_t dl_qv __attribute__((vector_size(16)));
#endif
/* A tile: its sums, a row of the kernel and a pixel must fit the registers, 32 or 16 of them. */
#if DL_QLANES == 16 || defined(__aarch64__)
#define DL_QROWS 6
#define DL_QWIDTH 4
#else
#define DL_QROWS 4
#define DL_QWIDTH 2
#endif

#if DL_QLANES == 1
/* A pixel at a time, all its outputs side by side. */
DL_FUNCTION void dl_quantised_conv(const dl_qsizes *d, const uint8_t *x, const uint8_t *k, int32_t *y) {
  for (int64_t i = 0; i < d->n; i++)
    for (int64_t p = 0; p < d->oh; p++)
      for (int64_t q = 0; q < d->ow; q++, y += d->o) {
        const uint8_t *with = k;
        memset(y, 0, (size_t)d->o * sizeof *y);
        for (int64_t u = 0; u < d->kh; u++)
          for (int64_t v = 0; v < d->kw; v++) {
            const uint8_t *from = x + ((i * d->h + p * d->sh + u) * d->w + q * d->sw + v) * d->c;
            for (int64_t c = 0; c < d->c; c += 4, from += 4)
              for (int64_t o = 0; o < d->o; o++, with += 4)
                for (int64_t t = 0; t < 4; t++) y[o] += from[t] * (((int32_t)with[t] ^ 128) - 128);
          }
      }
}
#else

/* LANES outputs' four bytes each, as they are multiplied. */
typedef struct {
  dl_qv even, odd; /* 16 bits each on AVX2; else `even` holds all four */
} dl_qk;

/* `count` of the outputs are there. */
DL_INLINE dl_qk dl_qload(const uint8_t *from, int64_t count) {
  dl_qv v = {0};
  if (count >= DL_QLANES)
    memcpy(&v, from, sizeof v);
  else
    for (int64_t j = 0; j < count; j++) {
      int32_t four;
      memcpy(&four, from + 4 * j, 4);
      v[j] = four;
    }
#if DL_QLANES == 8
  return (dl_qk){(dl_qv)((dl_qh)v << 8 >> 8), (dl_qv)((dl_qh)v >> 8)};
#else
  return (dl_qk){v, v};
#endif
}

/* sum + x . k, four terms a lane; `four` are four bytes of x. */
DL_INLINE dl_qv dl_qdot(dl_qv sum, uint32_t four, dl_qk k) {
#if DL_QLANES == 16
  const dl_qv wide = (dl_qv){0} + (int32_t)four;
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(wide), "v"(k.even));
  return sum;
#elif DL_QLANES == 8
  const dl_qv even = (dl_qv){0} + (int32_t)(four & 0x00ff00ff), odd = (dl_qv){0} + (int32_t)(four >> 8 & 0x00ff00ff);
  dl_qv a, b;
  __asm__("vpmaddwd %2, %1, %0" : "=x"(a) : "x"(even), "x"(k.even));
  __asm__("vpmaddwd %2, %1, %0" : "=x"(b) : "x"(odd), "x"(k.odd));
  return sum + a + b;
#else
  sum += ((k.even << 24) >> 24) * (int32_t)(four & 255);
  sum += ((k.even << 16) >> 24) * (int32_t)(four >> 8 & 255);
  sum += ((k.even << 8) >> 24) * (int32_t)(four >> 16 & 255);
  sum += (k.even >> 24) * (int32_t)(four >> 24);
  return sum;
#endif
}

/* One tile: ROWS pixels whose windows begin at x[r], of which `rows` are stored, one after the other in y. */
DL_INLINE void dl_qtile(const int ROWS, const int WIDTH, const dl_qsizes *d, const uint8_t *const *x, const uint8_t *k,
                        int32_t *y, int64_t rows, int64_t outputs) {
  dl_qv sum[DL_QROWS][DL_QWIDTH];
  DL_UNROLL for (int r = 0; r < ROWS; r++) {
    DL_UNROLL for (int j = 0; j < WIDTH; j++) sum[r][j] = (dl_qv){0};
  }
  const int64_t last = outputs - (WIDTH - 1) * DL_QLANES; /* in the last register */
  for (int64_t u = 0; u < d->kh; u++)
    for (int64_t v = 0; v < d->kw; v++) {
      const int64_t at = (u * d->w + v) * d->c;
      for (int64_t c = 0; c < d->c; c += 4, k += 4 * d->o) {
        dl_qk with[DL_QWIDTH];
        DL_UNROLL for (int j = 0; j < WIDTH; j++)
          with[j] = dl_qload(k + 4 * DL_QLANES * j, j < WIDTH - 1 ? DL_QLANES : last);
        DL_UNROLL for (int r = 0; r < ROWS; r++) {
          uint32_t four;
          memcpy(&four, x[r] + at + c, 4);
          DL_UNROLL for (int j = 0; j < WIDTH; j++) sum[r][j] = dl_qdot(sum[r][j], four, with[j]);
        }
      }
    }
  DL_UNROLL for (int r = 0; r < ROWS; r++) {
    if (r >= rows) break;
    DL_UNROLL for (int j = 0; j < WIDTH; j++) {
      int32_t *to = y + r * d->o + DL_QLANES * j;
      if (j < WIDTH - 1 || last >= DL_QLANES)
        memcpy(to, &sum[r][j], sizeof(dl_qv));
      else
        for (int64_t l = 0; l < last; l++) to[l] = sum[r][j][l];
    }
  }
}

#define DL_QTILE(NAME, ROWS, WIDTH)                                                                                  \
  DL_FUNCTION void NAME(const dl_qsizes *d, const uint8_t *const *x, const uint8_t *k, int32_t *y, int64_t rows,      \
                        int64_t outputs) {                                                                           \
    dl_qtile(ROWS, WIDTH, d, x, k, y, rows, outputs);                                                                \
  }
DL_QTILE(dl_qtile_whole, DL_QROWS, DL_QWIDTH)
DL_QTILE(dl_qtile_thin, DL_QROWS, 1)
DL_QTILE(dl_qtile_row, 1, DL_QWIDTH)
DL_QTILE(dl_qtile_one, 1, 1)

DL_FUNCTION void dl_quantised_conv(const dl_qsizes *d, const uint8_t *x, const uint8_t *k, int32_t *y) {
  const int64_t pixels = d->n * d->oh * d->ow;
  for (int64_t o = 0; o < d->o;) {
    const int64_t left = d->o - o;
    const _Bool wide = left >= DL_QWIDTH * DL_QLANES;
    const int64_t outputs = wide ? DL_QWIDTH * DL_QLANES : left < DL_QLANES ? left : DL_QLANES;
    for (int64_t p = 0; p < pixels;) {
      /* Tiles of even height: ten pixels are five and five. A tile that is not full repeats its last pixel. */
      const int64_t tiles = (pixels - p + DL_QROWS - 1) / DL_QROWS, rows = (pixels - p + tiles - 1) / tiles;
      const uint8_t *from[DL_QROWS];
      for (int64_t r = 0; r < DL_QROWS; r++) {
        const int64_t at = p + (r < rows ? r : rows - 1);
        const int64_t q = at % d->ow, i = at / d->ow / d->oh, t = at / d->ow % d->oh;
        from[r] = x + ((i * d->h + t * d->sh) * d->w + q * d->sw) * d->c;
      }
      (rows == 1 ? wide ? dl_qtile_row : dl_qtile_one : wide ? dl_qtile_whole : dl_qtile_thin)(
          d, from, k + 4 * o, y + p * d->o + o, rows, outputs);
      p += rows;
    }
    o += outputs;
  }
}
#endif
