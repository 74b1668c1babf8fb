/* Masks and shares: AES-256-CTR and ChaCha20 key streams added in Z_2^32, Shamir's sharing in GF(2^8).

   Compiled for the processor it runs on. No branch and no address depends on a secret: AES is the
   processor's instructions (without them dl_mask refuses suite 1 and the caller has OpenSSL do it),
   the rest is additions, shifts and masks. What held keys is overwritten before a function returns. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

static void wipe(void *memory, u64 bytes) {
    volatile u8 *at = memory;
    while (bytes--) *at++ = 0;
}

/* Bytes of the vector that all keys of a group mask before the next: they stay in the first-level
   cache beside the group's round keys. A multiple of every kernel's step. */
enum { TILE = 16384, GROUP = 32, AES_CTR = 1, CHACHA20 = 2 };

/* ---- AES-256 in counter mode: NIST SP 800-38A 6.5, the counter a big-endian number from 0. */

#if defined(__AES__) && defined(__SSE4_1__)
#define HAS_AES 1
#define _MM_MALLOC_H_INCLUDED 1 /* allocators of the C library: gcc, then clang */
#define __MM_MALLOC_H 1
#include <immintrin.h>

typedef struct { __m128i round[15]; } schedule;

INLINE __m128i fold(__m128i key) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_slli_si128(key, 8));
}

/* FIPS 197 section 5.2 for eight words. */
static void expand(schedule *s, const u8 *key) {
    __m128i low = _mm_loadu_si128((const __m128i *)key);
    __m128i high = _mm_loadu_si128((const __m128i *)(key + 16));
    s->round[0] = low;
    s->round[1] = high;
#define EVEN(i, constant)                                                        \
    low = _mm_xor_si128(fold(low),                                               \
        _mm_shuffle_epi32(_mm_aeskeygenassist_si128(high, constant), 0xff));     \
    s->round[i] = low;
#define ODD(i)                                                                   \
    high = _mm_xor_si128(fold(high),                                             \
        _mm_shuffle_epi32(_mm_aeskeygenassist_si128(low, 0), 0xaa));             \
    s->round[i] = high;
    EVEN(2, 1) ODD(3) EVEN(4, 2) ODD(5) EVEN(6, 4) ODD(7) EVEN(8, 8) ODD(9)
    EVEN(10, 16) ODD(11) EVEN(12, 32) ODD(13) EVEN(14, 64)
}

/* A vector of one, two or four blocks. */
#if defined(__VAES__) && defined(__AVX512F__) && defined(__AVX512BW__)
#define AES_NAME 3
typedef __m512i block;
#define BROADCAST(x) _mm512_broadcast_i32x4(x)
#define XOR _mm512_xor_si512
#define ADD32 _mm512_add_epi32
#define SUB32 _mm512_sub_epi32
#define ADD64 _mm512_add_epi64
#define SHUFFLE _mm512_shuffle_epi8
#define ROUND _mm512_aesenc_epi128
#define LAST _mm512_aesenclast_epi128
#define LOAD(p) _mm512_loadu_si512(p)
#define STORE(p, x) _mm512_storeu_si512(p, x)
#define COUNTERS(n) _mm512_set_epi64(0, (n) + 3, 0, (n) + 2, 0, (n) + 1, 0, n)
#define STEP(n) _mm512_set_epi64(0, n, 0, n, 0, n, 0, n)
#elif defined(__VAES__) && defined(__AVX2__)
#define AES_NAME 2
typedef __m256i block;
#define BROADCAST(x) _mm256_broadcastsi128_si256(x)
#define XOR _mm256_xor_si256
#define ADD32 _mm256_add_epi32
#define SUB32 _mm256_sub_epi32
#define ADD64 _mm256_add_epi64
#define SHUFFLE _mm256_shuffle_epi8
#define ROUND _mm256_aesenc_epi128
#define LAST _mm256_aesenclast_epi128
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define COUNTERS(n) _mm256_set_epi64x(0, (n) + 1, 0, n)
#define STEP(n) _mm256_set_epi64x(0, n, 0, n)
#else
#define AES_NAME 1
typedef __m128i block;
#define BROADCAST(x) (x)
#define XOR _mm_xor_si128
#define ADD32 _mm_add_epi32
#define SUB32 _mm_sub_epi32
#define ADD64 _mm_add_epi64
#define SHUFFLE _mm_shuffle_epi8
#define ROUND _mm_aesenc_si128
#define LAST _mm_aesenclast_si128
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define STORE(p, x) _mm_storeu_si128((__m128i *)(p), x)
#define COUNTERS(n) _mm_set_epi64x(0, n)
#define STEP(n) _mm_set_epi64x(0, n)
#endif

/* Vectors in flight: a round's latency is hidden behind those of the others. */
enum { WIDE = 8, BLOCKS = sizeof(block) / 16, STRIDE = WIDE * sizeof(block) };

/* Masks `bytes` bytes (a multiple of 4), the first of which belong to block `counter`. */
INLINE void aes_mask(u8 *at, u64 bytes, u64 counter, const schedule *s, const int minus) {
    const block reverse = BROADCAST(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    block key[15], count = COUNTERS(counter);
    for (int r = 0; r < 15; r++) key[r] = BROADCAST(s->round[r]);
    while (bytes) {
        block x[WIDE];
        for (int i = 0; i < WIDE; i++) {
            x[i] = XOR(SHUFFLE(count, reverse), key[0]);
            count = ADD64(count, STEP(BLOCKS));
        }
#pragma GCC unroll 13
        for (int r = 1; r < 14; r++)
#pragma GCC unroll 8
            for (int i = 0; i < WIDE; i++) x[i] = ROUND(x[i], key[r]);
#pragma GCC unroll 8
        for (int i = 0; i < WIDE; i++) x[i] = LAST(x[i], key[14]);
        if (bytes < STRIDE) {
            u32 stream[STRIDE / 4], *word = (u32 *)at;
            for (int i = 0; i < WIDE; i++) STORE(stream + i * sizeof(block) / 4, x[i]);
            for (u64 i = 0; i < bytes / 4; i++) word[i] += minus ? -stream[i] : stream[i];
            wipe(stream, sizeof stream);
            return;
        }
#pragma GCC unroll 8
        for (int i = 0; i < WIDE; i++) {
            u8 *place = at + i * sizeof(block);
            STORE(place, minus ? SUB32(LOAD(place), x[i]) : ADD32(LOAD(place), x[i]));
        }
        at += STRIDE;
        bytes -= STRIDE;
    }
}

static void aes_plus(u8 *at, u64 bytes, u64 counter, const schedule *s) {
    aes_mask(at, bytes, counter, s, 0);
}

static void aes_minus(u8 *at, u64 bytes, u64 counter, const schedule *s) {
    aes_mask(at, bytes, counter, s, 1);
}

static void aes_group(u8 *vector, u64 bytes, u64 counter, const u8 *keys, const signed char *signs, u64 count) {
    schedule schedules[GROUP];
    for (u64 k = 0; k < count; k++) expand(&schedules[k], keys + 32 * k);
    for (u64 at = 0; at < bytes; at += TILE) {
        u64 size = bytes - at < TILE ? bytes - at : TILE;
        for (u64 k = 0; k < count; k++)
            (signs[k] < 0 ? aes_minus : aes_plus)(vector + at, size, counter + at / 16, &schedules[k]);
    }
    wipe(schedules, sizeof schedules);
}
#else
#define HAS_AES 0
#define AES_NAME 0
#endif

/* ---- ChaCha20: RFC 8439 section 2.4, the nonce zeros, the counter from 0. Block by block in the
   lanes of vectors; the sum over all keys is turned into the order of the stream once a tile. */

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef u32 lanes __attribute__((vector_size(LANES * 4)));
enum { BATCH = 64 * LANES, BATCHES = TILE / BATCH };

#define ROTATE(x, n) ((x) << (n) | (x) >> (32 - (n)))
#define QUARTER(a, b, c, d)                                \
    a += b; d ^= a; d = ROTATE(d, 16);                     \
    c += d; b ^= c; b = ROTATE(b, 12);                     \
    a += b; d ^= a; d = ROTATE(d, 8);                      \
    c += d; b ^= c; b = ROTATE(b, 7);

INLINE void chacha_batch(lanes *sum, lanes counters, const u32 *key, const int minus) {
    lanes x[16], start[16];
    const u32 constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    for (int i = 0; i < 4; i++) start[i] = (lanes){0} + constants[i];
    for (int i = 0; i < 8; i++) start[4 + i] = (lanes){0} + key[i];
    start[12] = counters;
    start[13] = start[14] = start[15] = (lanes){0};
    for (int i = 0; i < 16; i++) x[i] = start[i];
    for (int i = 0; i < 10; i++) {
        QUARTER(x[0], x[4], x[8], x[12])
        QUARTER(x[1], x[5], x[9], x[13])
        QUARTER(x[2], x[6], x[10], x[14])
        QUARTER(x[3], x[7], x[11], x[15])
        QUARTER(x[0], x[5], x[10], x[15])
        QUARTER(x[1], x[6], x[11], x[12])
        QUARTER(x[2], x[7], x[8], x[13])
        QUARTER(x[3], x[4], x[9], x[14])
    }
    for (int i = 0; i < 16; i++) sum[i] += minus ? -(x[i] + start[i]) : x[i] + start[i];
}

static void chacha_group(u8 *vector, u64 bytes, u64 counter, const u8 *keys, const signed char *signs, u64 count) {
    lanes step;
    for (int i = 0; i < LANES; i++) step[i] = (u32)i;
    for (u64 at = 0; at < bytes; at += TILE) {
        lanes sums[BATCHES][16] = {{{0}}};
        u64 size = bytes - at < TILE ? bytes - at : TILE;
        int batches = (int)((size + BATCH - 1) / BATCH);
        for (u64 k = 0; k < count; k++) {
            u32 key[8];
            for (int i = 0; i < 8; i++) {
                const u8 *p = keys + 32 * k + 4 * i;
                key[i] = p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
            }
            for (int b = 0; b < batches; b++) {
                lanes counters = step + (u32)(counter + at / 64 + (u64)b * LANES);
                if (signs[k] < 0) chacha_batch(sums[b], counters, key, 1);
                else chacha_batch(sums[b], counters, key, 0);
            }
            wipe(key, sizeof key);
        }
        u32 *word = (u32 *)(vector + at);
        for (u64 i = 0; i < size / 4; i++)
            word[i] += ((const u32 *)sums[i / (16 * LANES)])[i % 16 * LANES + i / 16 % LANES];
        wipe(sums, sizeof sums);
    }
}

/* Which AES there is: 0 none, 1 one block an instruction, 2 two, 3 four. */
EXPORT int dl_aes(void) { return AES_NAME; }

/* Adds (sign > 0) or subtracts the masks of `count` keys to `bytes` bytes of little-endian u32. The
   first of them is byte `offset` of the key streams, a multiple of 64. Returns 1 where the suite is
   not there. */
EXPORT int dl_mask(u8 *vector, u64 bytes, u64 offset, const u8 *keys, const signed char *signs, u64 count, int suite) {
    if ((suite != CHACHA20 && !(HAS_AES && suite == AES_CTR)) || bytes % 4 || offset % 64) return 1;
    for (u64 k = 0; k < count; k += GROUP) {
        u64 some = count - k < GROUP ? count - k : GROUP;
        if (suite == CHACHA20) chacha_group(vector, bytes, offset / 64, keys + 32 * k, signs + k, some);
#if HAS_AES
        else aes_group(vector, bytes, offset / 16, keys + 32 * k, signs + k, some);
#endif
    }
    return 0;
}

/* ---- GF(2^8) modulo x^8 + x^4 + x^3 + x + 1, 32 bytes at a time. Points are public, bytes are not. */

enum { PART = 32, SHARES = 255 };
typedef u8 bytes32 __attribute__((vector_size(PART)));
typedef signed char signed32 __attribute__((vector_size(PART)));

INLINE bytes32 times(bytes32 a, u8 point) {
    bytes32 product = {0};
    for (; point; point >>= 1) {
        if (point & 1) product ^= a;
        a = (a << 1) ^ ((bytes32)((signed32)a < 0) & 0x1b);
    }
    return product;
}

static u8 public_times(u8 a, u8 b) {
    u8 product = 0;
    for (; b; b >>= 1) {
        if (b & 1) product ^= a;
        a = (u8)(a << 1) ^ (a >> 7) * 0x1b;
    }
    return product;
}

INLINE bytes32 load(const u8 *from, u64 size) {
    union { bytes32 v; u8 b[PART]; } x = {{0}};
    for (u64 i = 0; i < size; i++) x.b[i] = from[i];
    return x.v;
}

INLINE void store(u8 *to, bytes32 v, u64 size) {
    union { bytes32 v; u8 b[PART]; } x = {v};
    for (u64 i = 0; i < size; i++) to[i] = x.b[i];
}

/* Shares of `length` bytes for the points 1 to `count`, one after the other. rows: the secret, then
   the coefficients of x, x^2, ... x^(threshold-1), `length` bytes each. */
EXPORT void dl_split(const u8 *rows, u64 length, int count, int threshold, u8 *shares) {
    bytes32 row[SHARES];
    for (u64 at = 0; at < length; at += PART) {
        u64 size = length - at < PART ? length - at : PART;
        for (int j = 0; j < threshold; j++) row[j] = load(rows + (u64)j * length + at, size);
        for (int point = 1; point <= count; point++) {
            bytes32 value = row[threshold - 1];
            for (int j = threshold - 2; j >= 0; j--) value = times(value, (u8)point) ^ row[j];
            store(shares + (u64)(point - 1) * length + at, value, size);
        }
    }
    wipe(row, sizeof row);
}

/* The secret of `threshold` shares of `length` bytes at these points. */
EXPORT void dl_combine(const u8 *points, const u8 *shares, u64 length, int threshold, u8 *secret) {
    u8 factors[SHARES];
    for (int i = 0; i < threshold; i++) {
        u8 over = 1, under = 1, inverse = 1;
        for (int j = 0; j < threshold; j++)
            if (j != i) {
                over = public_times(over, points[j]);
                under = public_times(under, points[i] ^ points[j]);
            }
        /* under^254 */
        for (int bit = 0; bit < 7; bit++) {
            under = public_times(under, under);
            inverse = public_times(inverse, under);
        }
        factors[i] = public_times(over, inverse);
    }
    for (u64 at = 0; at < length; at += PART) {
        u64 size = length - at < PART ? length - at : PART;
        bytes32 sum = {0};
        for (int i = 0; i < threshold; i++)
            sum ^= times(load(shares + (u64)i * length + at, size), factors[i]);
        store(secret + at, sum, size);
    }
}
