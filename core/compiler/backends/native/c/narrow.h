/* Products of this program leave columns that fill half a vector: dense.h has tiles of half a vector for them.
 *
 * It reads and writes nothing.
 */
#define DL_HALVES
