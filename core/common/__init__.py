"""What all parts share: errors, files, lazy exports, the Merkle tree."""
