/* Persistent lists: linked nodes in a heap that one call owns.
 *
 * A list is a pointer to its top node, 0 for the empty one, which stands for zeros all the way down. Nodes are never
 * changed, so lists share their tails. A loop that carries no list out gives back, after each round, what the round took
 * (a mark and a release); the rest is freed when the call ends. The heap has a limit: past it, `full` is set and the
 * call ends with an error.
 *
 * Bounds: a payload has `bytes` bytes, which is what its type says at push and pop. lanes >= 1 and an index of dl_take_lanes is
 * brought into 0..lanes-1. dl_take_memory rounds up by less than GRAIN: sizes are below 2^40. used <= size in every chunk,
 * taken <= limit. Depth of recursion: at most list_nesting_max.
 */
typedef struct dl_node {
  const struct dl_node *below;
  char payload[]; /* copied in and out: as aligned as the pointer before it, not for vectors */
} dl_node;

typedef struct dl_chunk {
  struct dl_chunk *older;
  size_t size, used;
} dl_chunk;

typedef struct {
  dl_chunk *top, *spare, *lent;
  size_t taken, limit;
  _Bool full;
} dl_heap;

typedef struct {
  dl_chunk *top;
  size_t used;
} dl_mark;

#ifndef DL_CHUNK_BYTES
#define DL_CHUNK_BYTES ((size_t)1 << 20)
#endif

/* What a node takes is a multiple of this, which is malloc's own alignment: a number's node takes it once. */
#define DL_GRAIN ((size_t)16)
#define DL_CHUNK_START ((sizeof(dl_chunk) + DL_GRAIN - 1) & ~(DL_GRAIN - 1))

/* A new chunk with room for `size` bytes. */
DL_FUNCTION dl_chunk *dl_take_chunk(dl_heap *h, size_t size) {
  dl_chunk *c;
  size_t wanted = size + DL_CHUNK_START;
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
  c->used = DL_CHUNK_START;
  c->older = h->top;
  h->top = c;
  return c;
}

DL_INLINE void *dl_take_memory(dl_heap *h, size_t bytes) {
  const size_t size = (bytes + DL_GRAIN - 1) & ~(DL_GRAIN - 1);
  dl_chunk *c = h->top;
  if ((!c || c->size - c->used < size) && !(c = dl_take_chunk(h, size))) return 0;
  void *at = (char *)c + c->used;
  c->used += size;
  return at;
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

/* Memory of the caller's is the first chunk. It is not freed. */
DL_INLINE void dl_lend(dl_heap *h, void *memory, size_t size) {
  h->top = h->lent = memory;
  *h->lent = (dl_chunk){0, size, DL_CHUNK_START};
}

DL_FUNCTION void dl_free_all(dl_heap *h) {
  dl_release(h, (dl_mark){h->lent, DL_CHUNK_START});
  free(h->spare);
}

/* A list with one more on top; 0 when the heap is full. */
DL_INLINE const dl_node *dl_push(dl_heap *h, const dl_node *list, const void *x, size_t bytes) {
  dl_node *n = dl_take_memory(h, sizeof(dl_node) + bytes);
  if (!n) return 0;
  n->below = list;
  if (bytes) memcpy(n->payload, x, bytes);
  return n;
}

/* The list without its top, which is copied to x: zeros when the list is empty. */
DL_INLINE const dl_node *dl_pop(const dl_node *list, void *x, size_t bytes) {
  if (!list) {
    if (bytes) memset(x, 0, bytes);
    return 0;
  }
  if (bytes) memcpy(x, list->payload, bytes);
  return list->below;
}

typedef void dl_adder(void *, const void *, const void *, size_t);
#define DL_ADDER(T, U, S)                                                                             \
  DL_FUNCTION void dl_add_##S(void *to, const void *a, const void *b, size_t n) {                     \
    T *restrict t = to;                                                                               \
    const T *x = a, *y = b;                                                                           \
    for (size_t i = 0; i < n; i++) t[i] = (T)((U)x[i] + (U)y[i]);                                     \
  }
DL_ADDER(double, double, f64)
DL_ADDER(float, float, f32)
DL_ADDER(int64_t, uint64_t, i64)
DL_ADDER(int32_t, uint32_t, i32)
DL_ADDER(uint32_t, uint32_t, u32)
DL_ADDER(uint8_t, uint8_t, u8)

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

/* A list with lanes: an array of stacks in the heap, each a list as above; 0 when all are empty. Such arrays are never
 * changed either. */
typedef const dl_node *const *dl_lanes;

DL_INLINE dl_lanes dl_lanes_of(const dl_node *list) { return (dl_lanes)(const void *)list; }
DL_INLINE const dl_node *dl_lane(dl_lanes l, int64_t i) { return l ? l[i] : 0; }

/* Each lane with one more on top; `x` holds `bytes` bytes for each. */
DL_FUNCTION const dl_node *dl_push_lanes(dl_heap *h, const dl_node *list, const void *x, int64_t lanes, size_t bytes) {
  const dl_lanes from = dl_lanes_of(list);
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)lanes);
  if (!made) return 0;
  for (int64_t i = 0; i < lanes; i++)
    if (!(made[i] = dl_push(h, dl_lane(from, i), (const char *)x + (size_t)i * bytes, bytes))) return 0;
  return (const dl_node *)(const void *)made;
}

/* Each lane without its top; the tops are copied to x. */
DL_FUNCTION const dl_node *dl_pop_lanes(dl_heap *h, const dl_node *list, void *x, int64_t lanes, size_t bytes) {
  const dl_lanes from = dl_lanes_of(list);
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)lanes);
  if (!made) return 0;
  for (int64_t i = 0; i < lanes; i++) made[i] = dl_pop(dl_lane(from, i), (char *)x + (size_t)i * bytes, bytes);
  return (const dl_node *)(const void *)made;
}

DL_FUNCTION const dl_node *dl_select_lanes(dl_heap *h, const uint8_t *pred, const dl_node *a, const dl_node *b,
                                           int64_t lanes) {
  const dl_lanes x = dl_lanes_of(a), y = dl_lanes_of(b);
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)lanes);
  if (!made) return 0;
  for (int64_t i = 0; i < lanes; i++) made[i] = pred[i] ? dl_lane(x, i) : dl_lane(y, i);
  return (const dl_node *)(const void *)made;
}

/* Lanes at[0], at[1], ... of a list; `lanes` is 0 for a list without, which every lane becomes. */
DL_FUNCTION const dl_node *dl_take_lanes(dl_heap *h, const dl_node *list, const int64_t *at, int64_t count, int64_t lanes) {
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)count);
  if (!made) return 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t k = at[i] < 0 ? 0 : at[i] >= lanes ? lanes - 1 : at[i];
    made[i] = lanes ? dl_lane(dl_lanes_of(list), k) : list;
  }
  return (const dl_node *)(const void *)made;
}

/* The same for lists of lists. `inner` is how many lanes an element has, 0 for one stack: an element of several is kept
 * as the address of its part of x. */
DL_FUNCTION const dl_node *dl_push_lists(dl_heap *h, const dl_node *list, const dl_node *x, int64_t lanes, int64_t inner) {
  const dl_lanes from = dl_lanes_of(list), given = dl_lanes_of(x);
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)lanes);
  if (!made) return 0;
  for (int64_t i = 0; i < lanes; i++) {
    const dl_node *element = !given ? 0 : inner ? (const dl_node *)(const void *)(given + i * inner) : given[i];
    if (!(made[i] = dl_push(h, dl_lane(from, i), &element, sizeof element))) return 0;
  }
  return (const dl_node *)(const void *)made;
}

DL_FUNCTION const dl_node *dl_pop_lists(dl_heap *h, const dl_node *list, const dl_node **x, int64_t lanes, int64_t inner) {
  const dl_lanes from = dl_lanes_of(list);
  const int64_t each = inner ? inner : 1;
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)lanes);
  const dl_node **tops = dl_take_memory(h, sizeof(*tops) * (size_t)(lanes * each));
  if (!made || !tops) return 0;
  for (int64_t i = 0; i < lanes; i++) {
    const dl_node *top;
    made[i] = dl_pop(dl_lane(from, i), &top, sizeof top);
    for (int64_t j = 0; j < each; j++) tops[i * each + j] = inner ? dl_lane(dl_lanes_of(top), j) : top;
  }
  *x = (const dl_node *)(const void *)tops;
  return (const dl_node *)(const void *)made;
}

/* dl_list_add where lists have lanes: lanes[k] of the lists k deep, 0 for one stack. */
DL_FUNCTION const dl_node *dl_list_add_lanes(dl_heap *h, const dl_node *a, const dl_node *b, int depth,
                                             const int64_t *lanes, dl_adder *add, size_t count, size_t bytes) {
  if (!a || !b) return a ? a : b;
  const int64_t n = lanes[0] ? lanes[0] : 1;
  const dl_node **made = dl_take_memory(h, sizeof(*made) * (size_t)n);
  if (!made) return 0;
  for (int64_t i = 0; i < n; i++) {
    const dl_node *x = lanes[0] ? dl_lanes_of(a)[i] : a, *y = lanes[0] ? dl_lanes_of(b)[i] : b, **link = &made[i];
    for (; x && y; x = x->below, y = y->below) {
      dl_node *node = dl_take_memory(h, sizeof(dl_node) + (depth ? sizeof(void *) : bytes));
      if (!node) return 0;
      if (depth) {
        const dl_node *u, *v, *both;
        memcpy(&u, x->payload, sizeof u);
        memcpy(&v, y->payload, sizeof v);
        both = dl_list_add_lanes(h, u, v, depth - 1, lanes + 1, add, count, bytes);
        memcpy(node->payload, &both, sizeof both);
      } else {
        add(node->payload, x->payload, y->payload, count);
      }
      *link = node;
      link = &node->below;
    }
    *link = x ? x : y;
  }
  return lanes[0] ? (const dl_node *)(const void *)made : made[0];
}
