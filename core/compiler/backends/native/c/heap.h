/* Memory for lists where no system gives any (portable.py): blocks side by side in a static array, the first that fits.
 * A block begins with its size; neighbours that are free become one when they are passed.
 *
 * Bounds: blocks are multiples of the head's size and lie side by side from 0 to `end`: at + b->size <= end always. A block is
 * split where what is left has a head. `wanted` <= size + 2 heads, and size <= the array.
 */
typedef struct {
  size_t size; /* of the block with its head */
  size_t taken;
} dl_static_block;
static union {
  dl_static_block first;
  char bytes[DL_LIST_BYTES < 64 ? 64 : DL_LIST_BYTES];
} dl_static_heap;

DL_FUNCTION void *dl_static_take(size_t size) {
  const size_t blocks = sizeof dl_static_heap.bytes / sizeof(dl_static_block);
  char *const end = dl_static_heap.bytes + blocks * sizeof(dl_static_block);
  if (size > sizeof dl_static_heap.bytes) return 0;
  const size_t wanted = (size + 2 * sizeof(dl_static_block) - 1) / sizeof(dl_static_block) * sizeof(dl_static_block);
  if (!dl_static_heap.first.size) dl_static_heap.first.size = (size_t)(end - dl_static_heap.bytes);
  for (char *at = dl_static_heap.bytes; at < end;) {
    dl_static_block *const b = (dl_static_block *)(void *)at;
    while (!b->taken && at + b->size < end && !((dl_static_block *)(void *)(at + b->size))->taken)
      b->size += ((dl_static_block *)(void *)(at + b->size))->size;
    if (!b->taken && b->size >= wanted) {
      if (b->size > wanted) {
        dl_static_block *const rest = (dl_static_block *)(void *)(at + wanted);
        rest->size = b->size - wanted;
        rest->taken = 0;
      }
      b->size = wanted;
      b->taken = 1;
      return b + 1;
    }
    at += b->size;
  }
  return 0;
}

DL_FUNCTION void dl_static_give(void *p) {
  if (p) ((dl_static_block *)p - 1)->taken = 0;
}
