"""The certificate log (RFC 9162): entries, copies, proofs, witnesses."""
