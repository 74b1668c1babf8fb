"""Token ids of texts: tokenizer files, windows of documents, federations of them."""
