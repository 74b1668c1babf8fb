/* Products and convolutions of every other element type, as plain loops whose inner one runs along contiguous numbers.
 *
 * Bounds: dot reads a at i am + l ak, b at l bk + j bn, places of their views, and writes i n + j. Of a window, r and s are
 * compared with 0..h-1 and 0..w-1 before they are used: |p sh + u - top| < 2^42 by the bounds on strides, sizes and padding
 * (ops/attributes.py), so nothing overflows. ow * o > 0 in dl_strip_rows: empty results have no calls.
 */

/* The sizes of a convolution, here and in conv.h: strides sh and sw, `top` and `left` rows and columns of padding. */
typedef struct {
  int64_t n, h, w, c, kh, kw, o, oh, ow, sh, sw, top, left;
} dl_conv;

/* U: the type in which sums and products of T wrap. */
#define DL_PLAIN_DOT(T, U, S)                                                                                \
  DL_FUNCTION void dl_gemm_##S(int64_t m, int64_t n, int64_t k, const T *a, int64_t am, int64_t ak,          \
                               const T *b, int64_t bk, int64_t bn, T *restrict c) {                          \
    for (int64_t i = 0; i < m; i++) {                                                                        \
      T *restrict row = c + i * n;                                                                           \
      for (int64_t j = 0; j < n; j++) row[j] = 0;                                                            \
      for (int64_t l = 0; l < k; l++) {                                                                      \
        const U x = (U)a[i * am + l * ak];                                                                   \
        const T *restrict p = b + l * bk;                                                                    \
        if (bn == 1)                                                                                         \
          DL_INDEPENDENT for (int64_t j = 0; j < n; j++) row[j] = (T)((U)row[j] + x * (U)p[j]);              \
        else                                                                                                 \
          DL_INDEPENDENT for (int64_t j = 0; j < n; j++) row[j] = (T)((U)row[j] + x * (U)p[j * bn]);         \
      }                                                                                                      \
    }                                                                                                        \
  }

/* What follows a convolution, with rows `from` to `to` of its result, counted through all images: `made` are those, in
 * working memory, and nothing else is kept of them. They are all of an image, or an even number of rows of one. A file
 * that has no such calls needs no code for them. */
typedef void dl_then_rows(const void *const *context, const float *made, int64_t from, int64_t to);
typedef struct {
  dl_then_rows *rows;
  const void *const *context;
} dl_then;
#ifndef DL_THEN
#define DL_THEN 0
#endif
#define DL_FOLLOWED(then) (DL_THEN && (then))

/* So many rows are made at a time: what follows finds them in the first cache. Where the sums are long, all rows: else
 * the kernel would be read again for few pixels. */
#define DL_STRIP_FLOATS 4096
#define DL_STRIP_DEPTH 192
DL_INLINE int64_t dl_strip_rows(const dl_conv *d, int64_t depth) {
  const int64_t fit = DL_STRIP_FLOATS / (d->ow * d->o) & ~1, rows = fit < 2 ? 2 : fit;
  return depth > DL_STRIP_DEPTH || rows > d->oh ? d->oh : rows;
}

/* For every pair (input pixel, output pixel) under a window: BODY sees xs, ks, ys, the first numbers of the channels. */
#define DL_EACH_WINDOW(BODY)                                                                                 \
  for (int64_t i = 0; i < d->n; i++)                                                                         \
    for (int64_t p = 0; p < d->oh; p++)                                                                      \
      for (int64_t q = 0; q < d->ow; q++)                                                                    \
        for (int64_t u = 0; u < d->kh; u++)                                                                  \
          for (int64_t v = 0; v < d->kw; v++) {                                                              \
            const int64_t r = p * d->sh + u - d->top, s = q * d->sw + v - d->left;                           \
            if (r < 0 || r >= d->h || s < 0 || s >= d->w) continue;                                          \
            const int64_t xs = ((i * d->h + r) * d->w + s) * d->c, ks = (u * d->kw + v) * d->c * d->o;       \
            const int64_t ys = ((i * d->oh + p) * d->ow + q) * d->o;                                         \
            for (int64_t e = 0; e < d->c; e++)                                                               \
              for (int64_t f = 0; f < d->o; f++) BODY;                                                       \
          }

#define DL_PLAIN_CONV(T, S)                                                                                  \
  DL_FUNCTION void dl_conv_##S(const dl_conv *d, const T *x, const T *k, T *restrict y) {                    \
    memset(y, 0, (size_t)(d->n * d->oh * d->ow * d->o) * sizeof(T));                                         \
    DL_EACH_WINDOW(y[ys + f] += x[xs + e] * k[ks + e * d->o + f])                                            \
  }                                                                                                          \
  DL_FUNCTION void dl_conv_input_grad_##S(const dl_conv *d, const T *y, const T *k, T *restrict x) {         \
    memset(x, 0, (size_t)(d->n * d->h * d->w * d->c) * sizeof(T));                                           \
    DL_EACH_WINDOW(x[xs + e] += y[ys + f] * k[ks + e * d->o + f])                                            \
  }                                                                                                          \
  DL_FUNCTION void dl_conv_weight_grad_##S(const dl_conv *d, const T *x, const T *y, T *restrict k) {        \
    memset(k, 0, (size_t)(d->kh * d->kw * d->c * d->o) * sizeof(T));                                         \
    DL_EACH_WINDOW(k[ks + e * d->o + f] += x[xs + e] * y[ys + f])                                            \
  }
