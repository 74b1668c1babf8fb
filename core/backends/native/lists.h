/* Persistent lists: linked nodes in a heap that one call owns.
 *
 * A list is a pointer to its top node, 0 for the empty one, which stands for zeros all the way down. Nodes are never
 * changed, so lists share their tails. A loop that carries no list out gives back, after each round, what the round took
 * (a mark and a release); the rest is freed when the call ends. The heap has a limit: past it, `full` is set and the
 * call ends with an error.
 */
typedef struct dl_node {
  const struct dl_node *below;
  char DL_ALIGN payload[];
} dl_node;

typedef struct dl_chunk {
  struct dl_chunk *older;
  size_t size, used;
} dl_chunk;

typedef struct {
  dl_chunk *top, *spare;
  size_t taken, limit;
  _Bool full;
} dl_heap;

typedef struct {
  dl_chunk *top;
  size_t used;
} dl_mark;

#define DL_CHUNK_BYTES ((size_t)1 << 20)

DL_FUNCTION void *dl_take_memory(dl_heap *h, size_t bytes) {
  const size_t size = (bytes + 63) & ~(size_t)63;
  dl_chunk *c = h->top;
  if (!c || c->size - c->used < size + 64) {
    size_t wanted = size + sizeof(dl_chunk) + 128;
    if (wanted < DL_CHUNK_BYTES) wanted = DL_CHUNK_BYTES;
    if (h->spare && h->spare->size >= wanted) {
      c = h->spare;
      h->spare = 0;
    } else {
      if (wanted > h->limit - h->taken || !(c = malloc(wanted))) {
        h->full = 1;
        return 0;
      }
      c->size = wanted;
      h->taken += wanted;
    }
    c->used = sizeof(dl_chunk);
    c->older = h->top;
    h->top = c;
  }
  const uintptr_t at = ((uintptr_t)c + c->used + 63) & ~(uintptr_t)63;
  c->used = (size_t)(at - (uintptr_t)c) + size;
  return (void *)at;
}

DL_INLINE dl_mark dl_mark_of(const dl_heap *h) { return (dl_mark){h->top, h->top ? h->top->used : 0}; }

/* One chunk is kept for the next round. */
DL_FUNCTION void dl_release(dl_heap *h, dl_mark mark) {
  while (h->top != mark.top) {
    dl_chunk *c = h->top;
    h->top = c->older;
    if (h->spare && h->spare->size < c->size) {
      h->taken -= h->spare->size;
      free(h->spare);
      h->spare = 0;
    }
    if (h->spare) {
      h->taken -= c->size;
      free(c);
    } else {
      h->spare = c;
    }
  }
  if (h->top) h->top->used = mark.used;
}

DL_FUNCTION void dl_free_all(dl_heap *h) {
  dl_release(h, (dl_mark){0, 0});
  free(h->spare);
}

/* A list with one more on top; 0 when the heap is full. */
DL_FUNCTION const dl_node *dl_push(dl_heap *h, const dl_node *list, const void *x, size_t bytes) {
  dl_node *n = dl_take_memory(h, sizeof(dl_node) + bytes);
  if (!n) return 0;
  n->below = list;
  memcpy(n->payload, x, bytes);
  return n;
}

/* The list without its top, which is copied to x: zeros when the list is empty. */
DL_FUNCTION const dl_node *dl_pop(const dl_node *list, void *x, size_t bytes) {
  if (!list) {
    memset(x, 0, bytes);
    return 0;
  }
  memcpy(x, list->payload, bytes);
  return list->below;
}

typedef void dl_adder(void *, const void *, const void *, size_t);
#define DL_ADDER(T, S)                                                                                \
  DL_FUNCTION void dl_add_##S(void *to, const void *a, const void *b, size_t n) {                     \
    T *restrict t = to;                                                                               \
    const T *x = a, *y = b;                                                                           \
    for (size_t i = 0; i < n; i++) t[i] = (T)(x[i] + y[i]);                                           \
  }
DL_ADDER(double, f64)
DL_ADDER(float, f32)
DL_ADDER(int64_t, i64)
DL_ADDER(int32_t, i32)
DL_ADDER(uint32_t, u32)
DL_ADDER(uint8_t, u8)

/* The sum, element by element from the top; where one list ends, the other goes on. The elements are themselves lists,
 * `depth` deep, of tensors of `count` numbers and `bytes` bytes. */
DL_FUNCTION const dl_node *dl_list_add(dl_heap *h, const dl_node *a, const dl_node *b, int depth, dl_adder *add,
                                       size_t count, size_t bytes) {
  const dl_node *sum = 0, **link = &sum;
  for (; a && b; a = a->below, b = b->below) {
    dl_node *n = dl_take_memory(h, sizeof(dl_node) + (depth ? sizeof(void *) : bytes));
    if (!n) return 0;
    if (depth) {
      const dl_node *x, *y, *both;
      memcpy(&x, a->payload, sizeof x);
      memcpy(&y, b->payload, sizeof y);
      both = dl_list_add(h, x, y, depth - 1, add, count, bytes);
      memcpy(n->payload, &both, sizeof both);
    } else {
      add(n->payload, a->payload, b->payload, count);
    }
    *link = n;
    link = &n->below;
  }
  *link = a ? a : b;
  return sum;
}
