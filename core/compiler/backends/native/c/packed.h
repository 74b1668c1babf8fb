/* Products whose B was packed beforehand by dl_pack_all: what a loop multiplies with in every trip.
 *
 * Bounds: panels hold k * dl_width(columns) floats each, as dl_pack_all wrote them (packing.py's scratch_bytes); steps k0 to
 * k0 + length stay below k, columns below n.
 */

/* Parts of a panel that the first cache holds are gone through by all rows, unless the rows are few: then each panel is
 * read just once. */
DL_FUNCTION void dl_gemm_packed_part(const dl_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                     float *scratch) {
  const int64_t k = g->k, most = g->m <= 2 * DL_MR || g->c->after ? k : DL_KC;
  const int64_t whole = n0 + (n1 - n0) / DL_NR * DL_NR;
  (void)scratch;
  for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += most) {
    const int64_t length = k - k0 < most ? k - k0 : most;
    const float *panels = g->panels + n0 * k + k0 * DL_NR;
    if (whole > n0) dl_gemm_rows(g, k0, length, m0, m1, panels, DL_NR, k * DL_NR, 1, n0, whole);
    if (n1 > whole) {
      const float *edge = g->panels + whole * k + k0 * dl_width(n1 - whole);
      dl_gemm_rows(g, k0, length, m0, m1, edge, DL_NR, k * DL_NR, 1, whole, n1);
    }
  }
}

/* C = A B; the panels are [k][width], as long as k is. */
DL_FUNCTION void dl_gemm_packed(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                                const float *panels, const dl_target *c) {
  dl_gemm g = {dl_gemm_packed_part, m, n, k, a, am, ak, 0, 0, 0, panels, c, 0, 0, 0};
  dl_gemm_run(&g, m, DL_NR, 0, 0);
}
