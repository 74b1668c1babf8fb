/* Convolution and its two derivatives as products whose A is an image read through row pointers (gemm.h).
 *
 * Each image is copied once into a frame with its padding (or, for the gradient by the input, with zeros between the
 * rows that a stride skipped); row m of A is the window of output pixel m, kh segments of kw * c numbers, and so no
 * matrix of windows is ever built. Layouts: x [n][h][w][c], k [kh][kw][c][o], y [n][oh][ow][o].
 */

/* An image into a frame of zeros: pixel (i, j) goes to (top + i * down, left + j * across); what falls outside is lost. */
DL_FUNCTION void dl_frame_f32(const float *x, int64_t h, int64_t w, int64_t c, float *to, int64_t rows, int64_t columns,
                              int64_t top, int64_t left, int64_t down, int64_t across) {
  memset(to, 0, (size_t)(rows * columns * c) * 4);
  for (int64_t i = 0; i < h; i++) {
    const int64_t r = top + i * down;
    if (r < 0 || r >= rows) continue;
    if (across == 1) {
      const int64_t from = left < 0 ? -left : 0, end = columns - left < w ? columns - left : w;
      if (from < end)
        memcpy(to + (r * columns + left + from) * c, x + (i * w + from) * c, (size_t)((end - from) * c) * 4);
      continue;
    }
    for (int64_t j = 0; j < w; j++) {
      const int64_t q = left + j * across;
      if (q >= 0 && q < columns) memcpy(to + (r * columns + q) * c, x + (i * w + j) * c, (size_t)c * 4);
    }
  }
}

/* What the windows of all output pixels cover, of image x; in place where it needs no padding. */
DL_INLINE const float *dl_input_frame(const dl_conv *d, const float *x, float *frame, int64_t *width) {
  const int64_t rows = (d->oh - 1) * d->sh + d->kh, columns = (d->ow - 1) * d->sw + d->kw;
  if (d->top == 0 && d->left == 0 && rows <= d->h && columns <= d->w) {
    *width = d->w;
    return x;
  }
  dl_frame_f32(x, d->h, d->w, d->c, frame, rows, columns, d->top, d->left, 1, 1);
  *width = columns;
  return frame;
}

/* scratch: the packed kernel, then one frame */
DL_FUNCTION void dl_conv_f32(const dl_conv *d, const float *x, const float *k, float *y, float *scratch) {
  const int64_t depth = d->kh * d->kw * d->c, pixels = d->oh * d->ow;
  const int64_t panels = (d->o + DL_NR - 1) / DL_NR * DL_NR;
  dl_pack_all(depth, d->o, k, d->o, 1, scratch);
  for (int64_t i = 0; i < d->n; i++) {
    int64_t width;
    const float *image = dl_input_frame(d, x + i * d->h * d->w * d->c, scratch + depth * panels, &width);
    const dl_rows rows = {image, d->ow, d->sh * width * d->c, d->sw * d->c, d->kh, d->kw * d->c, width * d->c, 1};
    dl_product_packed(pixels, d->o, &rows, scratch, y + i * pixels * d->o, 0);
  }
}

/* The convolution of y, spread out by the strides, with the kernel turned about and its channels swapped.
 * scratch: the turned kernel, the packed kernel, one frame */
DL_FUNCTION void dl_conv_input_grad_f32(const dl_conv *d, const float *y, const float *k, float *x, float *scratch) {
  const int64_t depth = d->kh * d->kw * d->o, panels = (d->c + DL_NR - 1) / DL_NR * DL_NR;
  const int64_t height = d->h + d->kh - 1, width = d->w + d->kw - 1;
  float *turned = scratch, *packed = turned + depth * d->c, *frame = packed + depth * panels;
  for (int64_t t = 0; t < d->kh * d->kw; t++)
    dl_transpose_f32(d->c, d->o, k + (d->kh * d->kw - 1 - t) * d->c * d->o, d->o, turned + t * d->o * d->c, d->c);
  dl_pack_all(depth, d->c, turned, d->c, 1, packed);
  for (int64_t i = 0; i < d->n; i++) {
    dl_frame_f32(y + i * d->oh * d->ow * d->o, d->oh, d->ow, d->o, frame, height, width, d->kh - 1 - d->top,
                 d->kw - 1 - d->left, d->sh, d->sw);
    const dl_rows rows = {frame, d->w, width * d->o, d->o, d->kh, d->kw * d->o, width * d->o, 1};
    dl_product_packed(d->h * d->w, d->c, &rows, packed, x + i * d->h * d->w * d->c, 0);
  }
}

/* Summed over images: rows are the kernel's places (kh, kw, c), the sum runs over output pixels.
 * scratch: one image of y as panels, one frame */
DL_FUNCTION void dl_conv_weight_grad_f32(const dl_conv *d, const float *x, const float *y, float *k, float *scratch) {
  const int64_t pixels = d->oh * d->ow, panels = (d->o + DL_NR - 1) / DL_NR * DL_NR;
  if (d->n == 0) memset(k, 0, (size_t)(d->kh * d->kw * d->c * d->o) * 4);
  for (int64_t i = 0; i < d->n; i++) {
    int64_t width;
    const float *image = dl_input_frame(d, x + i * d->h * d->w * d->c, scratch + pixels * panels, &width);
    dl_pack_all(pixels, d->o, y + i * pixels * d->o, d->o, 1, scratch);
    const dl_rows rows = {image, d->kw * d->c, width * d->c, 1, d->oh, d->ow, d->sh * width * d->c, d->sw * d->c};
    dl_product_packed(d->kh * d->kw * d->c, d->o, &rows, scratch, k, i > 0);
  }
}
