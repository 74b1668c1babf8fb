"""Keys, certificates, chains, TLS settings, and the table of roles."""
