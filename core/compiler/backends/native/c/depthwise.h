/* Convolution of each channel by itself, and its two derivatives, for f32.
 *
 * Lanes lie along channels, which are next to one another in memory: x [n][h][w][c], k [kh][kw][c], y [n][oh][ow][c].
 * For a block of LANES channels the 3x3 kernel's taps stay in registers while a row of pixels goes by; other sizes read
 * them from the first cache. Rows and columns outside the image are left out, never read: the taps that a pixel meets
 * are a range in each direction. The last block of channels reaches back over the one before where the channels do not
 * fill it, and writes the same numbers again; fewer channels than LANES go through a buffer.
 *
 * Bounds: dl_taps gives taps whose rows r + u (columns s + v) lie in 0..h-1 (0..w-1), or none; the whole window is taken
 * without it only for in0 <= q < in1, where 0 <= q sw - left and q sw - left + kw <= w, and u is whole. |p sh - top| < 2^42.
 * Channel blocks begin at c0 <= c - LANES where c >= LANES; else images are widened to LANES channels in scratch (depthwise.py
 * has 16 lanes for each pixel of x and y and two kernels). `at` may point outside of x but is read at taps alone.
 */

typedef struct {
  int64_t from, to; /* taps that meet the image */
} dl_range;

/* The taps of `window` places that meet 0..size-1 when the window begins at `start`: 0 <= from <= to <= window, and
 * 0 <= start + from, start + to <= size, or the range is empty. The first line also keeps -start and size - start
 * from overflowing, whatever `start` is. */
DL_INLINE dl_range dl_taps(int64_t start, int64_t window, int64_t size) {
  if (start <= -window || start >= size) return (dl_range){0, 0};
  return (dl_range){start < 0 ? -start : 0, size - start < window ? size - start : window};
}

/* One pixel of one block of channels. */
DL_INLINE dl_vf dl_depthwise_pixel(const float *x, int64_t row, int64_t c, const float *k, int64_t k_row, dl_range u,
                                   dl_range v) {
  dl_vf sum = {0};
  for (int64_t i = u.from; i < u.to; i++)
    for (int64_t j = v.from; j < v.to; j++) sum += dl_load(x + i * row + j * c) * dl_load(k + i * k_row + j * c);
  return sum;
}

/* Rows of output pixels of one image, one block of channels; KH and KW are constants, 3, or 0 for any size. */
DL_INLINE void dl_depthwise_block(const int KH, const int KW, const dl_conv *d, const float *x, const float *k,
                                  float *y) {
  const int64_t c = d->c, row = d->w * c, k_row = d->kw * c;
  int64_t in0 = (d->left + d->sw - 1) / d->sw; /* pixels whose windows lie inside, from and to: */
  int64_t in1 = d->w + d->left - d->kw < 0 ? 0 : (d->w + d->left - d->kw) / d->sw + 1;
  if (in1 > d->ow) in1 = d->ow;
  if (in0 > in1) in0 = in1;
  dl_vf taps[9];
  if (KH) {
    DL_UNROLL for (int t = 0; t < KH * KW; t++) taps[t] = dl_load(k + t * c);
  }
  for (int64_t p = 0; p < d->oh; p++, y += d->ow * c) {
    const int64_t r = p * d->sh - d->top;
    const dl_range u = dl_taps(r, d->kh, d->h);
    const _Bool whole = KH && u.from == 0 && u.to == d->kh;
    for (int64_t q = 0; q < d->ow; q++) {
      const int64_t s = q * d->sw - d->left;
      const float *at = x + r * row + s * c;
      if (!whole || q < in0 || q >= in1) {
        dl_store(y + q * c, dl_depthwise_pixel(at, row, c, k, k_row, u, dl_taps(s, d->kw, d->w)));
        continue;
      }
      dl_vf even = {0}, odd = {0};
      DL_UNROLL for (int i = 0; i < KH; i++) {
        DL_UNROLL for (int j = 0; j < KW; j++) {
          const dl_vf term = dl_load(at + i * row + j * c) * taps[i * KW + j];
          if (j & 1)
            odd += term;
          else
            even += term;
        }
      }
      dl_store(y + q * c, even + odd);
    }
  }
}

DL_FUNCTION void dl_depthwise_block_3(const dl_conv *d, const float *x, const float *k, float *y) {
  dl_depthwise_block(3, 3, d, x, k, y);
}
DL_FUNCTION void dl_depthwise_block_any(const dl_conv *d, const float *x, const float *k, float *y) {
  dl_depthwise_block(0, 0, d, x, k, y);
}

/* Few channels: images, kernel and result with LANES channels, zeros in those that are not there. */
DL_FUNCTION void dl_fill_lanes(int64_t rows, int64_t c, const float *from, float *to) {
  memset(to, 0, (size_t)(rows * DL_LANES) * 4);
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * DL_LANES, from + i * c, (size_t)c * 4);
}
DL_FUNCTION void dl_cut_lanes(int64_t rows, int64_t c, const float *from, float *to) {
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * c, from + i * DL_LANES, (size_t)c * 4);
}

/* scratch, of fewer channels than LANES: x, k and y with LANES of them */
DL_FUNCTION void dl_grouped_conv_f32(const dl_conv *d, const float *x, const float *k, float *y, float *scratch) {
  const int64_t in = d->n * d->h * d->w, out = d->n * d->oh * d->ow, taps = d->kh * d->kw;
  if (d->c < DL_LANES) {
    dl_conv wide = *d;
    wide.c = DL_LANES;
    float *wx = scratch, *wk = wx + in * DL_LANES, *wy = wk + taps * DL_LANES;
    dl_fill_lanes(in, d->c, x, wx);
    dl_fill_lanes(taps, d->c, k, wk);
    dl_grouped_conv_f32(&wide, wx, wk, wy, 0);
    dl_cut_lanes(out, d->c, wy, y);
    return;
  }
  for (int64_t i = 0; i < d->n; i++)
    for (int64_t c = 0; c < d->c; c += DL_LANES) {
      const int64_t c0 = c + DL_LANES > d->c ? d->c - DL_LANES : c;
      const float *from = x + i * d->h * d->w * d->c + c0;
      float *to = y + i * d->oh * d->ow * d->c + c0;
      if (d->kh == 3 && d->kw == 3)
        dl_depthwise_block_3(d, from, k + c0, to);
      else
        dl_depthwise_block_any(d, from, k + c0, to);
    }
}

/* One pixel of the input's gradient: the output pixels whose windows meet it, `sh` and `sw` taps apart. */
DL_INLINE dl_vf dl_depthwise_back(const dl_conv *d, const float *y, const float *k, int64_t r, int64_t s) {
  const int64_t c = d->c;
  int64_t u = (r + d->top) % d->sh, p = (r + d->top) / d->sh;
  dl_vf sum = {0};
  for (; u < d->kh && p >= 0; u += d->sh, p--) {
    if (p >= d->oh) continue;
    int64_t v = (s + d->left) % d->sw, q = (s + d->left) / d->sw;
    for (; v < d->kw && q >= 0; v += d->sw, q--)
      if (q < d->ow) sum += dl_load(y + (p * d->ow + q) * c) * dl_load(k + (u * d->kw + v) * c);
  }
  return sum;
}

/* Strides of one: the convolution of y with the kernel turned about. scratch: that kernel; or, of few channels, y, k
 * and x with LANES of them, then the kernel. */
DL_FUNCTION void dl_grouped_conv_input_grad_f32(const dl_conv *d, const float *y, const float *k, float *x,
                                                float *scratch) {
  const int64_t in = d->n * d->h * d->w, out = d->n * d->oh * d->ow, taps = d->kh * d->kw;
  if (d->c < DL_LANES) {
    dl_conv wide = *d;
    wide.c = DL_LANES;
    float *wy = scratch, *wk = wy + out * DL_LANES, *wx = wk + taps * DL_LANES;
    dl_fill_lanes(out, d->c, y, wy);
    dl_fill_lanes(taps, d->c, k, wk);
    dl_grouped_conv_input_grad_f32(&wide, wy, wk, wx, wx + in * DL_LANES);
    dl_cut_lanes(in, d->c, wx, x);
    return;
  }
  if (d->sh == 1 && d->sw == 1) {
    for (int64_t t = 0; t < taps; t++)
      memcpy(scratch + t * d->c, k + (taps - 1 - t) * d->c, (size_t)d->c * 4);
    dl_conv back = *d;
    back.h = d->oh, back.w = d->ow, back.oh = d->h, back.ow = d->w;
    back.top = d->kh - 1 - d->top, back.left = d->kw - 1 - d->left;
    dl_grouped_conv_f32(&back, y, scratch, x, 0);
    return;
  }
  for (int64_t i = 0; i < d->n; i++)
    for (int64_t r = 0; r < d->h; r++)
      for (int64_t s = 0; s < d->w; s++)
        for (int64_t c = 0; c < d->c; c += DL_LANES) {
          const int64_t c0 = c + DL_LANES > d->c ? d->c - DL_LANES : c;
          const dl_vf sum = dl_depthwise_back(d, y + i * d->oh * d->ow * d->c + c0, k + c0, r, s);
          dl_store(x + ((i * d->h + r) * d->w + s) * d->c + c0, sum);
        }
}

/* Adds to one block of the kernel's gradient what one row of output pixels says; `u` are the rows of taps. */
DL_INLINE void dl_depthwise_weigh(const int KW, const dl_conv *d, const float *x, const float *y, float *k,
                                  dl_range u) {
  const int64_t c = d->c, row = d->w * c;
  for (int64_t i = u.from; i < u.to; i++) {
    dl_vf sum[5];
    DL_UNROLL for (int j = 0; j < KW; j++) sum[j] = (dl_vf){0};
    for (int64_t q = 0; q < d->ow; q++) {
      const int64_t s = q * d->sw - d->left;
      const dl_vf g = dl_load(y + q * c);
      const float *at = x + i * row + s * c;
      if (s >= 0 && s + KW <= d->w) {
        DL_UNROLL for (int j = 0; j < KW; j++) sum[j] += g * dl_load(at + j * c);
      } else {
        DL_UNROLL for (int j = 0; j < KW; j++)
          if (s + j >= 0 && s + j < d->w) sum[j] += g * dl_load(at + j * c);
      }
    }
    DL_UNROLL for (int j = 0; j < KW; j++) {
      float *to = k + (i * KW + j) * c;
      dl_store(to, dl_load(to) + sum[j]);
    }
  }
}

/* The same for a kernel of any width, a tap at a time. */
DL_INLINE void dl_depthwise_weigh_any(const dl_conv *d, const float *x, const float *y, float *k, dl_range u) {
  const int64_t c = d->c, row = d->w * c;
  for (int64_t i = u.from; i < u.to; i++)
    for (int64_t j = 0; j < d->kw; j++) {
      dl_vf sum = {0};
      for (int64_t q = 0; q < d->ow; q++) {
        const int64_t s = q * d->sw - d->left + j;
        if (s >= 0 && s < d->w) sum += dl_load(y + q * c) * dl_load(x + i * row + s * c);
      }
      float *to = k + (i * d->kw + j) * c;
      dl_store(to, dl_load(to) + sum);
    }
}

/* All images and rows for one block of channels. A row is summed by itself: long sums round little. `k` has LANES
 * channels. */
DL_FUNCTION void dl_depthwise_weights(const dl_conv *d, const float *x, const float *y, float *k) {
  for (int64_t i = 0; i < d->n; i++)
    for (int64_t p = 0; p < d->oh; p++) {
      const int64_t r = p * d->sh - d->top;
      const dl_range u = dl_taps(r, d->kh, d->h);
      const float *xs = x + (i * d->h + r) * d->w * d->c, *ys = y + (i * d->oh + p) * d->ow * d->c;
      if (d->kw == 3)
        dl_depthwise_weigh(3, d, xs, ys, k, u);
      else
        dl_depthwise_weigh_any(d, xs, ys, k, u);
    }
}

/* scratch, of few channels: x, y and k with LANES of them */
DL_FUNCTION void dl_grouped_conv_weight_grad_f32(const dl_conv *d, const float *x, const float *y, float *k,
                                                 float *scratch) {
  const int64_t in = d->n * d->h * d->w, out = d->n * d->oh * d->ow, taps = d->kh * d->kw;
  if (d->c < DL_LANES) {
    dl_conv wide = *d;
    wide.c = DL_LANES;
    float *wx = scratch, *wy = wx + in * DL_LANES, *wk = wy + out * DL_LANES;
    dl_fill_lanes(in, d->c, x, wx);
    dl_fill_lanes(out, d->c, y, wy);
    dl_grouped_conv_weight_grad_f32(&wide, wx, wy, wk, 0);
    dl_cut_lanes(taps, d->c, wk, k);
    return;
  }
  memset(k, 0, (size_t)(taps * d->c) * 4);
  int64_t c = 0;
  for (; c + DL_LANES <= d->c; c += DL_LANES) dl_depthwise_weights(d, x + c, y + c, k + c);
  if (c < d->c) { /* the last block reaches back: what it sums up anew begins at zero again */
    for (int64_t t = 0; t < taps; t++) memset(k + t * d->c + d->c - DL_LANES, 0, DL_LANES * 4);
    dl_depthwise_weights(d, x + d->c - DL_LANES, y + d->c - DL_LANES, k + d->c - DL_LANES);
  }
}
