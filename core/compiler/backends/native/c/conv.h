/* Convolution and its two derivatives as products whose A is an image read through row pointers (gemm.h).
 *
 * Each image is copied once into a frame with its padding; row m of A is the window of output pixel m, kh segments of kw * c numbers, and so no
 * matrix of windows is ever built. Layouts: x [n][h][w][c], k [kh][kw][c][o], y [n][oh][ow][o].
 *
 * Bounds: with rows = (oh - 1) sh + kh <= h + top + bottom and columns alike, window p < oh, q < ow covers p sh..p sh+kh-1
 * and q sw..q sw+kw-1 of the frame, which has rows * columns * c floats (dl_frame_size, kernels.py's _conv_scratch). An
 * image is read in place only where top = left = 0 and rows <= h, columns <= w. dl_frame_f32 copies x columns from..end-1,
 * 0 <= from, end <= w, and none where i < 0 or i >= h. Gradient by the input: for kind < min(window, stride), first < stride,
 * places >= 1, and from + count - 1 + places - 1 < height; each kind's packed kernel is of its own places, which add up to
 * kh * kw. Sizes <= 2^40, strides <= 2^16, padding <= 2^24: no product of the verified scratch leaves 2^56.
 */

/* Numbers to another place, or zeros. Rows of a few hundred do not pay a call of memcpy. */
DL_INLINE void dl_copy_f32(float *to, const float *from, int64_t count) {
  int64_t i = 0;
  for (; i + DL_LANES <= count; i += DL_LANES) dl_store(to + i, dl_load(from + i));
  for (; i < count; i++) to[i] = from[i];
}
DL_INLINE void dl_zeros_f32(float *to, int64_t count) {
  int64_t i = 0;
  for (; i + DL_LANES <= count; i += DL_LANES) dl_store(to + i, (dl_vf){0});
  for (; i < count; i++) to[i] = 0.0f;
}

/* An image into a frame of zeros, `top` rows down and `left` columns across; what falls outside is lost. */
DL_FUNCTION void dl_frame_f32(const float *x, int64_t h, int64_t w, int64_t c, float *to, int64_t rows, int64_t columns,
                              int64_t top, int64_t left) {
  const int64_t from = left < 0 ? -left : 0, end = columns - left < w ? columns - left : w;
  const int64_t before = (left + from) * c, count = (end - from) * c, after = columns * c - before - count;
  for (int64_t r = 0; r < rows; r++, to += columns * c) {
    const int64_t i = r - top;
    if (i < 0 || i >= h || count <= 0) {
      dl_zeros_f32(to, columns * c);
      continue;
    }
    dl_zeros_f32(to, before);
    dl_copy_f32(to + before, x + (i * w + from) * c, count);
    dl_zeros_f32(to + before + count, after);
  }
}

/* What the windows of all output pixels cover, of image x; in place where it needs no padding. */
DL_INLINE const float *dl_input_frame(const dl_conv *d, const float *x, float *frame, int64_t *width) {
  const int64_t rows = (d->oh - 1) * d->sh + d->kh, columns = (d->ow - 1) * d->sw + d->kw;
  if (d->top == 0 && d->left == 0 && rows <= d->h && columns <= d->w) {
    *width = d->w;
    return x;
  }
  dl_frame_f32(x, d->h, d->w, d->c, frame, rows, columns, d->top, d->left);
  *width = columns;
  return frame;
}

/* What the chunks of a convolution share: operands, result, and what was packed for all of them. */
typedef struct {
  const dl_conv *d;
  const float *from, *packed;
  float *to;
  const dl_then *then; /* instead of `to` */
  dl_rows rows; /* of one image, for the weights */
  int64_t span;
  _Bool more, direct; /* of the weights: added to what is there; of y as it lies */
} dl_conv_work;

/* Whether the images of a convolution go to several threads. */
DL_INLINE int64_t dl_conv_cost(const dl_conv *d) { return d->oh * d->ow * d->o * d->kh * d->kw * d->c; }
DL_INLINE void dl_conv_images(dl_body *body, dl_conv_work *work, float *scratch, int64_t floats) {
  const int64_t images = work->d->n;
  if (images * dl_conv_cost(work->d) >= DL_PARALLEL_WORK)
    dl_parallel(images, body, work, scratch, 4 * floats);
  else
    for (int64_t i = 0; i < images; i++) body(work, i, scratch);
}

/* Floats of the frame of an image. */
DL_INLINE int64_t dl_frame_size(const dl_conv *d) {
  return ((d->oh - 1) * d->sh + d->kh) * ((d->ow - 1) * d->sw + d->kw) * d->c;
}

/* One image; scratch: its frame, and what rows of y are made in. */
DL_FUNCTION void dl_conv_image(void *context, int64_t i, void *scratch) {
  const dl_conv_work *w = (const dl_conv_work *)context;
  const dl_conv *d = w->d;
  const int64_t pixels = d->oh * d->ow;
  int64_t width;
  const float *image = dl_input_frame(d, w->from + i * d->h * d->w * d->c, (float *)scratch, &width);
  const dl_rows rows = {image, d->ow, d->sh * width * d->c, d->sw * d->c, d->kh, d->kw * d->c, width * d->c, 1};
  if (!DL_FOLLOWED(w->then)) {
    dl_product_panels(0, pixels, d->o, &rows, w->packed, 1, w->to + i * pixels * d->o, 0);
    return;
  }
  const int64_t span = dl_strip_rows(d, d->kh * d->kw * d->c);
  float *made = (float *)scratch + dl_frame_size(d);
  for (int64_t p = 0; p < d->oh; p += span) {
    const int64_t count = d->oh - p < span ? d->oh - p : span;
    dl_rows strip = rows;
    strip.data += p * rows.row_jump;
    dl_product_panels(0, count * d->ow, d->o, &strip, w->packed, 1, made, 0);
    w->then->rows(w->then->context, made, i * d->oh + p, i * d->oh + p + count);
  }
}

/* scratch: the packed kernel, then one frame; with `then`, some rows of y */
DL_FUNCTION void dl_conv_f32(const dl_conv *d, const float *x, const float *k, float *y, float *scratch,
                             const dl_then *then) {
  const int64_t depth = d->kh * d->kw * d->c, panels = (d->o + DL_NR - 1) / DL_NR * DL_NR;
  dl_conv_work work = {d, x, scratch, y, then};
  dl_pack_all(depth, d->o, k, d->o, 1, scratch);
  const int64_t strip = DL_FOLLOWED(then) ? dl_strip_rows(d, depth) * d->ow * d->o : 0;
  dl_conv_images(dl_conv_image, &work, scratch + depth * panels, dl_frame_size(d) + strip);
}

/* One axis of the gradient by the input. Where a window moves on by `stride`, element i of x meets only those kernel
 * places that are (i + before) % stride, so its elements fall into `stride` kinds, and the gradient of each kind is a
 * convolution of its own, without a stride: of y with those places of the kernel, turned about. A kind from `window` on
 * meets no place: its gradient is zero, so no loop goes over more than dl_kind_count of them. */
typedef struct {
  int64_t first, count; /* elements of this kind: the first, and how many */
  int64_t places;       /* of the kernel, from `kind` on, `stride` apart; at least one */
  int64_t from;         /* where in the frame the window of the first one begins */
} dl_kind;

DL_INLINE dl_kind dl_kind_of(int64_t kind, int64_t size, int64_t window, int64_t stride, int64_t before) {
  dl_kind a;
  a.first = ((kind - before) % stride + stride) % stride;
  a.count = a.first < size ? (size - a.first + stride - 1) / stride : 0;
  a.places = (window - kind + stride - 1) / stride;
  /* The frame begins with what the first element of any kind needs of the longest kind of kernel. */
  a.from = (a.first + before - kind) / stride - before / stride + (window + stride - 1) / stride - a.places;
  return a;
}

DL_INLINE int64_t dl_kind_count(int64_t window, int64_t stride) { return window < stride ? window : stride; }

/* The sides of the frame of y, and the largest kernel of a kind. */
typedef struct {
  int64_t longest, widest, height, width;
} dl_reach;

DL_INLINE dl_reach dl_reach_of(const dl_conv *d) {
  dl_reach a;
  a.longest = (d->kh + d->sh - 1) / d->sh;
  a.widest = (d->kw + d->sw - 1) / d->sw;
  a.height = (d->h - 1 + d->top) / d->sh - d->top / d->sh + a.longest;
  a.width = (d->w - 1 + d->left) / d->sw - d->left / d->sw + a.widest;
  return a;
}

/* One image; scratch: its frame, and with strides one kind of it. */
DL_FUNCTION void dl_conv_input_grad_image(void *context, int64_t n, void *scratch) {
  const dl_conv_work *w = (const dl_conv_work *)context;
  const dl_conv *d = w->d;
  const dl_reach a = dl_reach_of(d);
  const int64_t panels = (d->c + DL_NR - 1) / DL_NR * DL_NR;
  const _Bool direct = d->sh == 1 && d->sw == 1;
  float *image = w->to + n * d->h * d->w * d->c, *frame = (float *)scratch, *part = frame + a.height * a.width * d->o;
  const float *packed = w->packed;
  dl_frame_f32(w->from + n * d->oh * d->ow * d->o, d->oh, d->ow, d->o, frame, a.height, a.width,
               a.longest - 1 - d->top / d->sh, a.widest - 1 - d->left / d->sw);
  if (d->sh > d->kh || d->sw > d->kw) memset(image, 0, (size_t)(d->h * d->w * d->c) * 4);
  for (int64_t r = 0; r < dl_kind_count(d->kh, d->sh); r++) {
    for (int64_t q = 0; q < dl_kind_count(d->kw, d->sw); q++) {
      const dl_kind v = dl_kind_of(r, d->h, d->kh, d->sh, d->top), u = dl_kind_of(q, d->w, d->kw, d->sw, d->left);
      const int64_t step = d->o, jump = a.width * d->o, places = v.places * u.places;
      const float *own = packed;
      packed += places * d->o * panels;
      if (!v.count || !u.count) continue;
      const dl_rows rows = {frame + v.from * jump + u.from * step, u.count, jump, step, v.places,
                            u.places * d->o, jump, 1};
      dl_product_panels(0, v.count * u.count, d->c, &rows, own, 1, direct ? image : part, 0);
      if (direct) continue;
      for (int64_t i = 0; i < v.count; i++)
        for (int64_t j = 0; j < u.count; j++)
          memcpy(image + ((v.first + i * d->sh) * d->w + u.first + j * d->sw) * d->c,
                 part + (i * u.count + j) * d->c, (size_t)d->c * 4);
    }
  }
}

/* scratch: the turned kernel, the packed kernel, one frame, and with strides one kind of an image.
 * The frame has (h - 1 + top) / sh - top / sh + ceil(kh / sh) rows, and columns alike. */
DL_FUNCTION void dl_conv_input_grad_f32(const dl_conv *d, const float *y, const float *k, float *x, float *scratch) {
  const int64_t panels = (d->c + DL_NR - 1) / DL_NR * DL_NR, taps = d->kh * d->kw;
  const dl_reach a = dl_reach_of(d);
  const int64_t kind = (d->h + d->sh - 1) / d->sh * ((d->w + d->sw - 1) / d->sw) * d->c;
  float *turned = scratch, *packed = turned + taps * d->o * d->c, *frame = packed + taps * d->o * panels, *to = packed;
  dl_conv_work work = {d, y, packed, x};
  for (int64_t r = 0; r < dl_kind_count(d->kh, d->sh); r++) {
    for (int64_t q = 0; q < dl_kind_count(d->kw, d->sw); q++) {
      const dl_kind v = dl_kind_of(r, d->h, d->kh, d->sh, d->top), u = dl_kind_of(q, d->w, d->kw, d->sw, d->left);
      for (int64_t i = 0; i < v.places; i++)
        for (int64_t j = 0; j < u.places; j++) {
          const int64_t row = r + d->sh * (v.places - 1 - i), column = q + d->sw * (u.places - 1 - j);
          dl_transpose_f32(d->c, d->o, k + (row * d->kw + column) * d->c * d->o, d->o,
                           turned + (i * u.places + j) * d->o * d->c, d->c);
        }
      dl_pack_all(v.places * u.places * d->o, d->c, turned, d->c, 1, to);
      to += v.places * u.places * d->o * panels;
    }
  }
  dl_conv_images(dl_conv_input_grad_image, &work, frame, a.height * a.width * d->o + kind);
}

/* Some rows of the sum, of one image. */
DL_FUNCTION void dl_conv_weight_rows(void *context, int64_t chunk, void *scratch) {
  const dl_conv_work *w = (const dl_conv_work *)context;
  const int64_t rows = w->d->kh * w->d->kw * w->d->c, m0 = chunk * w->span;
  const int64_t m = rows - m0 < w->span ? rows - m0 : w->span, o = w->d->o;
  (void)scratch;
  dl_product_panels(m0, m, o, &w->rows, w->packed, !w->direct, w->to, w->more);
}

/* Summed over images: rows are the kernel's places (kh, kw, c), the sum runs over output pixels. Threads share the rows
 * of each image, so that every sum keeps its order.
 * scratch: one image of y as panels, one frame */
DL_FUNCTION void dl_conv_weight_grad_f32(const dl_conv *d, const float *x, const float *y, float *k, float *scratch) {
  const int64_t pixels = d->oh * d->ow, panels = (d->o + DL_NR - 1) / DL_NR * DL_NR, rows = d->kh * d->kw * d->c;
  const int64_t most = dl_has_pool() && dl_conv_cost(d) >= DL_PARALLEL_WORK ? DL_CHUNKS_MAX / 2 : 1;
  dl_conv_work work = {d, x, scratch, k};
  if (d->n == 0) memset(k, 0, (size_t)(rows * d->o) * 4);
  work.span = dl_span(rows, DL_MR, most);
  /* Few rows: packing would cost as much as it saves. One panel: it lies as it would be packed. */
  work.direct = d->o % DL_LANES == 0 && (rows <= 3 * DL_MR || d->o <= DL_NR);
  for (int64_t i = 0; i < d->n; i++) {
    int64_t width;
    const float *image = dl_input_frame(d, x + i * d->h * d->w * d->c, scratch + pixels * panels, &width);
    work.packed = work.direct ? y + i * pixels * d->o : scratch;
    if (!work.direct) dl_pack_all(pixels, d->o, y + i * pixels * d->o, d->o, 1, scratch);
    work.rows = (dl_rows){image, d->kw * d->c, width * d->c, 1, d->oh, d->ow, d->sh * width * d->c, d->sw * d->c};
    work.more = i > 0;
    dl_parallel((rows + work.span - 1) / work.span, dl_conv_weight_rows, &work, 0, 0);
  }
}
