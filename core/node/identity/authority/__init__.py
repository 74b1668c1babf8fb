"""The certificate authority: what it issues, revokes, delegates and signs."""
