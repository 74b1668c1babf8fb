/* Products whose B was packed beforehand by dl_pack_all: what a loop multiplies with in every trip. */

/* Parts of a panel that the first cache holds are gone through by all rows, unless the rows are few: then each panel is
 * read just once. */
DL_FUNCTION void dl_gemm_packed_part(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                     float *scratch) {
  const int64_t n = g->n, k = g->k, most = g->m <= 2 * DL_MR || g->c->after ? k : DL_KC;
  const float *panels = g->panels + n0 * k;
  (void)scratch;
  for (; n0 < n1; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns);
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += most) {
      dl_rows part = *g->rows;
      part.data += k0 * g->rows->step;
      part.length = k - k0 < most ? k - k0 : most;
      dl_panel(m0, m1 - m0, &part, panels + k0 * width, width, n0, columns, g->c, k0 > 0);
    }
    panels += k * width;
  }
}

/* C = A B; the panels are [k][width], as long as k is. */
DL_FUNCTION void dl_gemm_packed(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                                const float *panels, const dl_target *c) {
  const dl_rows rows = {a, m, 0, am, 1, k, 0, ak};
  dl_gemm g = {dl_gemm_packed_part, m, n, k, &rows, 0, 0, 0, panels, c, 0, 0, 0};
  dl_gemm_run(&g, m, DL_NR, 0, 0);
}
