/* Products of this program leave columns that fill half a vector: dense.h has tiles of half a vector for them. */
#define DL_HALVES
