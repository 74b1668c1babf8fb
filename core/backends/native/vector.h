/* The ground that generated programs stand on: types, vectors, lanes, hints.
 *
 * No header of the C library but stdint and stddef is read, and nothing is called but memcpy, memset, malloc, free and
 * a few functions of libm for f64: so a bare compiler with no C library at hand (zig with a cold cache) is enough, and
 * the symbols are found in the process that loads the program.
 */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict, const void *restrict, size_t);
void *memset(void *, int, size_t);
void *malloc(size_t);
void free(void *);

#define DL_INLINE static inline __attribute__((always_inline, unused))
#define DL_FUNCTION static __attribute__((noinline, unused))
#define DL_ALIGN __attribute__((aligned(64)))

/* Before a loop whose iterations are independent: its stores touch no element that another iteration reads. */
#ifdef __clang__
#define DL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define DL_UNROLL _Pragma("clang loop unroll(full)")
#define DL_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define DL_INDEPENDENT _Pragma("GCC ivdep")
#define DL_UNROLL _Pragma("GCC unroll 16")
#define DL_ROLLED _Pragma("GCC unroll 1")
#endif

/* Floats in a vector register. */
#if defined(__AVX512F__)
#define DL_LANES 16
#elif defined(__AVX__)
#define DL_LANES 8
#else
#define DL_LANES 4
#endif

typedef float dl_vf __attribute__((vector_size(4 * DL_LANES)));
typedef float dl_vfu __attribute__((vector_size(4 * DL_LANES), aligned(4), may_alias));
typedef double dl_vd __attribute__((vector_size(4 * DL_LANES)));
typedef double dl_vdu __attribute__((vector_size(4 * DL_LANES), aligned(8), may_alias));

DL_INLINE dl_vf dl_load(const float *p) { return (dl_vf) * (const dl_vfu *)p; }
DL_INLINE void dl_store(float *p, dl_vf v) { *(dl_vfu *)p = (dl_vfu)v; }

DL_INLINE float dl_as_f32(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
DL_INLINE uint32_t dl_as_u32(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}

/* An index from the program, brought into 0..size-1: no program reads or writes outside its tensors. */
DL_INLINE int64_t dl_clamp(int64_t i, int64_t size) { return i < 0 ? 0 : i >= size ? size - 1 : i; }
