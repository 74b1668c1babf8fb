/* The ground that generated programs stand on: types, vectors, lanes, hints.
 *
 * No header of the C library but stdint and stddef is read, and nothing is called but memcpy, memset, malloc, free and
 * a few functions of libm for f64: so a bare compiler with no C library at hand (zig with a cold cache) is enough, and
 * the symbols are found in the process that loads the program.
 *
 * With DL_PORTABLE defined (portable.py) it is plain C11: one lane, which is a float, and no vectors. So a header that
 * has code for DL_LANES == 1 reads a lane by DL_LANE, and casts no vector of numbers to one of bits.
 *
 * Bounds: dl_load and dl_store touch DL_LANES floats from p on, and ask for the alignment of one float. dl_clamp gives
 * 0..size-1 for any i where size >= 1; type rules refuse indices into an axis of size 0.
 */
#include <stddef.h>
#include <stdint.h>

#if defined(DL_PORTABLE) && (!defined(__GNUC__) || defined(DL_NO_GNU))
#define DL_PLAIN_C
#include <math.h>
#include <string.h>
#else
void *memcpy(void *restrict, const void *restrict, size_t);
void *memset(void *, int, size_t);
#endif
#ifdef DL_PORTABLE
static void *dl_static_take(size_t);
static void dl_static_give(void *);
#define malloc dl_static_take
#define free dl_static_give
#else
void *malloc(size_t);
void free(void *);
#endif

#ifndef DL_PLAIN_C
#define DL_INLINE static inline __attribute__((always_inline, unused))
#define DL_FUNCTION static __attribute__((noinline, unused))
#define DL_ALIGN __attribute__((aligned(64)))
#else
#define DL_INLINE static inline
#define DL_FUNCTION static
#define DL_ALIGN
#define __attribute__(x)
#define __builtin_memcpy memcpy
#define __builtin_fabsf fabsf
#define __builtin_fabs fabs
#define __builtin_floorf floorf
#define __builtin_floor floor
#define __builtin_ceilf ceilf
#define __builtin_ceil ceil
#define __builtin_rintf rintf
#define __builtin_rint rint
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#define __builtin_copysignf copysignf
#define __builtin_copysign copysign
#define __builtin_inff() HUGE_VALF
#define __builtin_inf() HUGE_VAL
#define __builtin_nanf(x) (HUGE_VALF - HUGE_VALF)
#define __builtin_nan(x) (HUGE_VAL - HUGE_VAL)
#endif

/* A table of which compilers do not see what is in it. Where GCC 12 sees that a block of 32 or 64 bytes is some equal
 * integers and then zeros (of negative ones, then minus ones), it copies it as if all of them were equal. */
#ifdef DL_PLAIN_C
#define DL_TABLE(p) (p)
#else
DL_INLINE const void *dl_hidden(const void *p) {
  __asm__("" : "+r"(p));
  return p;
}
#define DL_TABLE(p) dl_hidden(p)
#endif

/* A float that a loop adds several numbers to in each round, in an order that is not that of memory. Where GCC before 14
 * makes vectors of those numbers, it may add the last one twice. */
#if !defined(__GNUC__) || defined(__clang__) || defined(DL_NO_GNU) || __GNUC__ >= 14
#define DL_IN_ORDER(a) ((void)0)
#elif defined(__SSE2__)
#define DL_IN_ORDER(a) __asm__("" : "+x"(a))
#elif defined(__aarch64__)
#define DL_IN_ORDER(a) __asm__("" : "+w"(a))
#else
#define DL_IN_ORDER(a) __asm__("" : "+m"(a))
#endif

/* Loops of a program, which may be compiled apart from what calls them (parts.py). */
#ifdef DL_PART
#define DL_LOOP __attribute__((noinline, visibility("hidden")))
#else
#define DL_LOOP DL_FUNCTION
#endif

/* Before a loop whose iterations are independent: its stores touch no element that another iteration reads. */
#if defined(DL_PLAIN_C) || (defined(DL_PORTABLE) && defined(__clang__))
#define DL_INDEPENDENT
#define DL_UNROLL
#define DL_UNROLL_ALL
#define DL_ROLLED
#elif defined(__clang__)
#define DL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define DL_UNROLL _Pragma("clang loop unroll(full)")
#define DL_UNROLL_ALL DL_UNROLL
#define DL_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define DL_INDEPENDENT _Pragma("GCC ivdep")
#define DL_UNROLL _Pragma("GCC unroll 16")
#define DL_UNROLL_ALL _Pragma("GCC unroll 64")
#define DL_ROLLED _Pragma("GCC unroll 1")
#endif

/* Asks for memory that is read soon, or, of the second cache, somewhat later; any address will do. */
#ifdef DL_PLAIN_C
#define DL_PREFETCH(p) ((void)0)
#define DL_PREFETCH_L2(p) ((void)0)
#else
#define DL_PREFETCH(p) __builtin_prefetch(p)
#define DL_PREFETCH_L2(p) __builtin_prefetch(p, 0, 2)
#endif

/* Floats in a vector register. */
#ifdef DL_PORTABLE
#define DL_LANES 1
#elif defined(DL_LANES) /* as it was tuned: a processor may run fewer lanes faster */
#elif defined(__AVX512F__)
#define DL_LANES 16
#elif defined(__AVX__)
#define DL_LANES 8
#else
#define DL_LANES 4
#endif

#if DL_LANES == 1
typedef float dl_vf;
#define DL_LANE(v, l) (v)
DL_INLINE dl_vf dl_load(const float *p) { return *p; }
DL_INLINE void dl_store(float *p, dl_vf v) { *p = v; }
#else
typedef float dl_vf __attribute__((vector_size(4 * DL_LANES)));
typedef float dl_vfu __attribute__((vector_size(4 * DL_LANES), aligned(4), may_alias));
typedef double dl_vd __attribute__((vector_size(4 * DL_LANES)));
typedef double dl_vdu __attribute__((vector_size(4 * DL_LANES), aligned(8), may_alias));

DL_INLINE dl_vf dl_load(const float *p) { return (dl_vf) * (const dl_vfu *)p; }
DL_INLINE void dl_store(float *p, dl_vf v) { *(dl_vfu *)p = (dl_vfu)v; }
#define DL_LANE(v, l) ((v)[l])
#endif

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
