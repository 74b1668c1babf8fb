/* Products whose B is computed while it is packed: of a weight in few bits there are codes and scales, and a few panels.
 *
 * A source writes rows and columns of a matrix, of which B is a part as it is, or turned about. Turned, some columns of B
 * are written as rows of the matrix into a block that stays in the first cache, and go from there into their panel.
 *
 * Bounds: row + k <= rows of the matrix and column + n <= its columns (n and k change places where it is turned), by
 * expanded_operands.py; `scratch` holds PANELS * NR floats for each step of k at a time (kernels.py's _product_scratch).
 * The block has NR rows of BLOCK numbers, and at most as many are written.
 */

typedef void dl_expand(const void *const *context, float *to, int64_t step, int64_t row, int64_t rows, int64_t column,
                       int64_t columns);
typedef struct {
  dl_expand *expand;
  const void *const *context;
  int64_t row, column; /* where B begins in the matrix */
  _Bool turned;
} dl_source;
typedef struct {
  dl_gemm gemm; /* first, so that a pointer to it is one to all */
  const dl_source *source;
} dl_expanded;

#define DL_BLOCK 128 /* numbers of a row that are turned at a time */
/* Columns n0 to n1 of B, of terms k0 to k0 + k, as panels of their own width. */
DL_FUNCTION void dl_pack_expanded(const dl_source *s, int64_t k0, int64_t k, int64_t n0, int64_t n1, float *to) {
  float DL_ALIGN block[DL_NR * DL_BLOCK];
  for (; n0 < n1; n0 += DL_NR) {
    const int64_t columns = n1 - n0 < DL_NR ? n1 - n0 : DL_NR, width = dl_width(columns);
    if (columns < width) memset(to, 0, (size_t)(k * width) * 4);
    if (!s->turned) {
      s->expand(s->context, to, width, s->row + k0, k, s->column + n0, columns);
    } else {
      for (int64_t i = 0; i < k; i += DL_BLOCK) {
        const int64_t length = k - i < DL_BLOCK ? k - i : DL_BLOCK;
        s->expand(s->context, block, DL_BLOCK, s->row + n0, columns, s->column + k0 + i, length);
        dl_transpose_f32(columns, length, block, DL_BLOCK, to + i * width, width);
      }
    }
    to += k * width;
  }
}

/* As dl_gemm_panels. */
DL_FUNCTION void dl_gemm_expanded_part(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                       float *scratch) {
  const dl_source *const source = ((const dl_expanded *)g)->source;
  const int64_t k = g->k, steps = dl_panel_steps(g);
  for (; n0 < n1; n0 += DL_PANELS * DL_NR) {
    const int64_t end = n1 - n0 < DL_PANELS * DL_NR ? n1 : n0 + DL_PANELS * DL_NR;
    for (int64_t k0 = 0; k0 < k; k0 += steps) {
      const int64_t length = k - k0 < steps ? k - k0 : steps;
      dl_pack_expanded(source, k0, length, n0, end, scratch);
      dl_gemm_rows(g, k0, length, m0, m1, scratch, DL_NR, length * DL_NR, 1, n0, end);
    }
  }
}

/* C = A B; k >= 1, and with a function to follow k <= 1024. */
DL_FUNCTION void dl_gemm_expanded(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                                  const dl_source *source, const dl_target *c, float *scratch) {
  dl_expanded e = {{dl_gemm_expanded_part, m, n, k, a, am, ak, 0, 0, 0, scratch, c, 0, 0, 0}, source};
  const int64_t steps = dl_panel_steps(&e.gemm);
  dl_gemm_run(&e.gemm, DL_MR * 8, DL_NR, scratch, (k < steps ? k : steps) * DL_PANELS * DL_NR);
}
