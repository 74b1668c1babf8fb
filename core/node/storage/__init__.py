"""What a node keeps: journal and blobs, over a disk that may fail."""
